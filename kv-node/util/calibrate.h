// `calibrate` of the offline tool: measures the flash of a store that no daemon uses, stores the
// profile that the daemon works with from its next start on, and says what was found.
//
// Blocking:   for about a second, and as long as opening and closing the store takes.
// Errors:     NOT_FOUND no store there; UNAVAILABLE a daemon uses it; FAILED_PRECONDITION io_uring
//             is demanded but refused, or the extent file was not written in full; as opening a
//             store for damage.
#pragma once

#include <string>

#include "common/base/status.h"
#include "kv-node/device/file_device.h"

namespace cairn::kv {

struct CalibrateCommand {
  std::string data_dir;
  IoEngine engine = IoEngine::kAuto;
  // "emmc", "ufs3.1", "ufs4.0": measures the flash as it is with that device_profile. Empty: as it
  // is.
  std::string device_profile;
  bool json = false;
};

// The text for the user: a table and what was derived from it; or one JSON object with both.
absl::StatusOr<std::string> RunCalibrate(const CalibrateCommand& command);

}  // namespace cairn::kv
