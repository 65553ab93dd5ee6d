// The check of `cairn-kv-util verify`, for a store that nobody uses.
#pragma once

#include "common/base/status.h"
#include "tests/sim/sim_node.h"

namespace cairn::sim {

// Not OK: the first finding.
absl::Status CheckSimStore(SimStore& store);

}  // namespace cairn::sim
