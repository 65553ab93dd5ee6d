// Why keys or values cannot be stored: which layer made them, of which tensors, and what to do.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {
namespace {

// The number farthest from 0; one that is none before all others.
float Largest(std::span<const float> row) {
  return *std::max_element(row.begin(), row.end(), [](float a, float b) {
    return !std::isnan(a) && (std::isnan(b) || std::abs(a) < std::abs(b));
  });
}

}  // namespace

absl::Status KvMisfitError(const AttentionBatch& batch, std::int64_t head_dim, KvFormat format) {
  const auto count = static_cast<std::size_t>(head_dim);
  std::vector<std::byte> entry(static_cast<std::size_t>(KvEntryBytes(format, head_dim)));
  for (std::size_t from = 0; from < batch.k.size(); from += count) {
    const std::span<const float> key = batch.k.subspan(from, count);
    const std::span<const float> value = batch.v.subspan(from, count);
    const KvMisfit misfit = StoreKvEntry(key, value, format, entry.data());
    if (misfit == KvMisfit::kNone) continue;
    const bool is_key = misfit == KvMisfit::kKey;
    const float largest = Largest(is_key ? key : value);
    const std::string what = fmt::format(
        "layer {}: tensor 'blk.{}.attn_{}.weight' and its bias make a {} with the number {:.6g}",
        batch.layer, batch.layer, is_key ? "k" : "v", is_key ? "key" : "value", largest);
    if (!std::isfinite(largest)) {
      return FailedPrecondition(
          "{}: the model's numbers became too large for 32 bits, as those of a damaged file do; "
          "get "
          "the file again, or another conversion of it",
          what);
    }
    return FailedPrecondition(
        "{}, which kv_format {} cannot hold: start cairn-compute-node with kv_format: \"f32\"",
        what, KvFormatName(format));
  }
  CAIRN_CHECK(false);
}

}  // namespace cairn::compute
