// What policies' plans have in common: what they rank by, their size, and cutting them into slices.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Adds a cluster to the last slice, or to a new one if that one is full.
void AddToPlan(const PolicyOptions& options, PlannedCluster cluster, std::vector<FetchSlice>& plan);

// How many stored entries of each KV head the input's step may attend: of SelectedTokens, for which
// everything counts that has not left the window. A prompt reads everything.
std::int64_t StoredBudget(const SelectionInput& input, const SelectionOptions& options);

// The sum of a token's queries of the heads that share KV head `head`. `queries`: one token's,
// (query head, head_dim), or such sums already, (KV head, head_dim). REQUIRES: 0 <= head <
// head_count, the KV heads.
std::vector<float> QuerySum(std::span<const float> queries, std::int64_t head_count,
                            std::int64_t head_dim, std::int32_t head);

// Calls body(head) for every head, on the pool's threads if there is a pool.
template <typename Body>
void ForEachHead(ThreadPool* pool, std::int32_t head_count, const Body& body) {
  const auto call = [&](std::int64_t head) { body(static_cast<std::int32_t>(head)); };
  if (pool != nullptr) return pool->ParallelFor(head_count, call);
  for (std::int64_t head = 0; head < head_count; ++head) call(head);
}

}  // namespace cairn::compute
