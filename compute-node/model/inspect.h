// What `cairn model inspect` prints: what a GGUF file holds, whether Cairn runs it and if not all
// reasons, and what running it takes. docs/models.md has the lines.
//
// Blocking:   reads metadata and vectors only, no matrices; the probe takes what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kernels/read_bandwidth.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

struct InspectOptions {
  // Tokens of one pass, for the estimate of scratch memory. As many as a compute node takes that is
  // not configured otherwise.
  std::int64_t batch_tokens = 4096;
  // Measures the machine; asked only for a model that runs. Empty: no estimate of speed.
  std::function<absl::StatusOr<ReadBandwidth>()> probe;
};

struct ModelReport {
  std::string text;                    // lines of "name: value"
  std::string json;                    // an object with a field for each of them, and a line end
  std::vector<absl::Status> problems;  // empty if Cairn runs the model
};

ModelReport InspectModel(const GgufFile& file, const InspectOptions& options = {});

}  // namespace cairn::compute
