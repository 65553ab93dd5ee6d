// What cairn-policy-eval prints and writes of an evaluation. docs/policy-eval.md has the fields.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "compute-node/eval/policy_measure.h"

namespace cairn::eval {

// Of all heads together.
struct AttentionTotals {
  double recall = 0;
  // The (layer, KV head) that has least, as an index of the heads.
  std::size_t lowest_head = 0;
  double attended_mean = 0;
  std::int64_t attended_max = 0;
  std::int64_t over_count = 0;
  std::int64_t over_max = 0;
  double fetched_entries = 0;  // by step
};
// REQUIRES: heads with steps.
AttentionTotals TotalsOf(std::span<const HeadAttention> heads);

// Of all heads together: sums, and the mean variance weighted by entries.
compute::HeadStatistics TotalsOf(const compute::PolicyStatistics& statistics);

// Without what full attention is needed for, where nothing was compared with it.
nlohmann::ordered_json ToJson(const PolicyResult& result);

// One line for each policy.
std::string Table(std::span<const PolicyResult> results);

// What a policy attended at a measured step.
struct Selection {
  std::string_view policy;
  std::int64_t position = 0;  // of the step
  HeadName head;
  std::span<const std::int64_t> attended{};  // positions, ascending, each once
};

// A line of JSON, with its line end.
std::string SelectionLine(const Selection& selection);

}  // namespace cairn::eval
