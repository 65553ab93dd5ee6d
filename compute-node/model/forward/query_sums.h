// Query weights, summed over the query heads that share a KV head. A policy that ranks by the sum
// of a KV head's queries needs no more than the product with them to know ahead what a layer will
// look for, and they are smaller than the query weights by the size of the group: rotary embedding
// turns all heads of a token alike, so the sum of rotated queries is the rotated sum.
//
// Shapes:    from a matrix (kv_head * group * head_dim, embedding) to (kv_head * head_dim,
//            embedding).
// Precision: Q8_0 where the weights are quantised, else F16: they only say what to read.
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {

struct QuerySumShape {
  std::int64_t head_dim = 0;
  std::int64_t group_size = 0;
};

// The type of the sums of weights of that type.
WeightType QuerySumType(WeightType type);

// Packs panel `panel` (kernels/packed_matrix.h) of the sums of the row-major matrix at `rows`, as
// GGUF stores it, to `to`. REQUIRES: the weights are finite.
void PackQuerySums(WeightType type, const std::byte* rows, const QuerySumShape& shape,
                   std::int64_t sum_row_count, std::int64_t column_count, std::int64_t panel,
                   std::byte* to);

// Likewise of a bias. REQUIRES: bias.size() is a multiple of a group's numbers.
std::vector<float> SumQueryBias(std::span<const float> bias, const QuerySumShape& shape);

}  // namespace cairn::compute
