// What policies rank by: the sum of a token's queries of the heads that share a KV head.
//
// Threading: functions of their arguments only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// Of KV head `head`. `queries`: one token's, (query head, head_dim), or such sums already,
// (KV head, head_dim). REQUIRES: 0 <= head < head_count, the KV heads.
std::vector<float> QuerySum(std::span<const float> queries, std::int64_t head_count,
                            std::int64_t head_dim, std::int32_t head);

}  // namespace cairn::compute
