// Scores of single tokens against queries, and the best of them.
//
// Determinism: the same numbers give the same result on one processor; of equal scores the earlier
//              token is better.
// Threading:   functions of their arguments only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

float Dot(const float* a, const float* b, std::int64_t count);

// The queries of one token's heads that share KV head `head`: (head of the group, head_dim).
std::span<const float> GroupQueries(const SelectionInput& input, const PolicyOptions& options,
                                    std::int32_t head);

// Adds to `masses` the softmax of `scores`, which are multiplied by `scale` before. A softmax that
// is not finite adds nothing.
void AddSoftmax(std::span<float> scores, float scale, std::span<float> masses);

// The indices of the `count` largest scores, best first; what is not a number comes last. REQUIRES:
// count <= scores.size().
std::vector<std::int64_t> BestIndices(std::span<float> scores, std::int64_t count);

}  // namespace cairn::compute
