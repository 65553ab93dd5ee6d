#include "tests/sim/sim_run.h"

#include <algorithm>
#include <chrono>

#include "tests/sim/sim_world.h"

namespace cairn::sim {
namespace {

constexpr std::chrono::seconds kShrinkTimeMax{60};

}  // namespace

SimOutcome RunSeed(std::uint64_t seed, std::int64_t step_count, const std::vector<bool>& left_out) {
  SimWorld world(seed);
  SimOutcome outcome;
  for (std::int64_t step = 0; step < step_count; ++step) {
    if (static_cast<std::size_t>(step) < left_out.size() &&
        left_out[static_cast<std::size_t>(step)]) {
      continue;
    }
    outcome.status = world.Step(step);
    outcome.events.push_back(fmt::format("{}: {}", step, world.last_event()));
    if (outcome.status.ok()) continue;
    outcome.failed_step = step;
    break;
  }
  if (outcome.status.ok()) {
    outcome.status = world.End();
    outcome.failed_step = step_count;
  }
  outcome.counts = world.counts();
  outcome.trace = world.trace();
  return outcome;
}

std::vector<std::int64_t> ShrinkSeed(std::uint64_t seed, std::int64_t step_count) {
  const auto end_time = std::chrono::steady_clock::now() + kShrinkTimeMax;
  std::vector<bool> left_out(static_cast<std::size_t>(step_count), false);
  for (std::size_t size = left_out.size() / 2; size > 0; size /= 2) {
    for (std::size_t from = 0; from < left_out.size(); from += size) {
      if (std::chrono::steady_clock::now() > end_time) break;
      std::vector<bool> fewer = left_out;
      const std::size_t end = std::min(from + size, fewer.size());
      std::fill(fewer.begin() + static_cast<std::ptrdiff_t>(from),
                fewer.begin() + static_cast<std::ptrdiff_t>(end), true);
      if (fewer == left_out) continue;
      const SimOutcome outcome = RunSeed(seed, step_count, fewer);
      if (!outcome.status.ok()) left_out = std::move(fewer);
    }
  }
  std::vector<std::int64_t> needed;
  for (std::size_t step = 0; step < left_out.size(); ++step) {
    if (!left_out[step]) needed.push_back(static_cast<std::int64_t>(step));
  }
  return needed;
}

}  // namespace cairn::sim
