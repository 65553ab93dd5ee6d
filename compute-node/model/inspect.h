// What `cairn model inspect` prints: what a GGUF file holds, and whether Cairn runs it and if not
// why.
#pragma once

#include <string>

#include "common/base/status.h"
#include "compute-node/model/gguf.h"

namespace cairn::compute {

struct ModelReport {
  std::string text;       // lines of "name: value"
  absl::Status runnable;  // OK, or why Cairn cannot run this model
};

ModelReport InspectModel(const GgufFile& file);

}  // namespace cairn::compute
