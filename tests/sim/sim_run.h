// Runs a seed of the simulation, and shrinks one that fails to the steps that it needs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace cairn::sim {

struct SimOutcome {
  absl::Status status;
  std::int64_t failed_step = -1;  // the number of steps: at the end
  std::map<std::string, int> counts;
  std::vector<std::string> events;  // of each step that was made
  std::uint64_t trace = 0;          // of all that was said
};

// Steps 0 .. step_count - 1 but for those that `left_out` names (empty: none).
SimOutcome RunSeed(std::uint64_t seed, std::int64_t step_count,
                   const std::vector<bool>& left_out = {});

// Of a run of so many steps that fails, those without which it does not fail any more: found by
// leaving out halves, quarters and so on, for a minute at most.
std::vector<std::int64_t> ShrinkSeed(std::uint64_t seed, std::int64_t step_count);

}  // namespace cairn::sim
