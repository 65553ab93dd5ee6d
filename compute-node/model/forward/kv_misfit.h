// Why keys or values cannot be stored: which layer made them, of which tensors, and what to do.
//
// Threading:  a pure function.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/kv/kv_format.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {

// FAILED_PRECONDITION about the first entry of the layer that `format` cannot hold.
// REQUIRES: there is one.
absl::Status KvMisfitError(const AttentionBatch& batch, std::int64_t head_dim, KvFormat format);

}  // namespace cairn::compute
