// What policies' plans have in common: their size, and cutting them into slices.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstdint>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Adds a cluster to the last slice, or to a new one if that one is full.
void AddToPlan(const PolicyOptions& options, PlannedCluster cluster, std::vector<FetchSlice>& plan);

// How many stored entries of each KV head the input's step may attend: what it may attend at all
// is `selected`, and everything that has not left the window counts. A prompt reads everything.
std::int64_t StoredBudget(const SelectionInput& input, std::int64_t selected);

}  // namespace cairn::compute
