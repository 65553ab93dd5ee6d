// The file that cairn-tune writes (proto/cairn/config/v1/tuning.proto, as JSON), and whether it is
// for the daemon that reads it.
//
// Threading:  functions on the file system.
// Errors:     name the file. INVALID_ARGUMENT what is no such file, or a value out of range;
//             FAILED_PRECONDITION it is for another model, device, version, format of keys and
//             values, or for more memory; those of reading it.
#pragma once

#include <string>

#include "common/base/status.h"
#include "compute-node/session/options.h"
#include "compute-node/session/tuning.h"

namespace cairn::compute {

// What a daemon runs on, as a tuning file names it.
struct TunedFor {
  std::string cairn_version;
  std::string model_digest;  // kModelDigestBytes bytes
  std::string machine;
  std::string cpu;
};

// `model_digest`: of the model that is served.
TunedFor ThisDevice(std::string model_digest);

// `options`: the daemon's, which entries are laid on.
absl::StatusOr<Tuning> ReadTuningFile(const std::string& path, const TunedFor& here,
                                      const SessionOptions& options);

}  // namespace cairn::compute
