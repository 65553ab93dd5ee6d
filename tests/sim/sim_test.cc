// Random events on both tiers, under one scheduler: see sim_world.h.
//
// CAIRN_TEST_SEED=N repeats one seed to the step and shrinks it where it fails; CAIRN_SIM_SEEDS=N
// says how many are run, CAIRN_SIM_FIRST=N from which on instead of a random one, and
// CAIRN_SIM_STEPS=N of how many steps.
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/sim/sim_run.h"

namespace cairn::sim {
namespace {

#ifdef CAIRN_SANITIZED
constexpr std::int64_t kSeedsDefault = 12;  // each takes ten times as long
#else
constexpr std::int64_t kSeedsDefault = 60;
#endif
constexpr std::int64_t kStepsDefault = 10000;
constexpr std::int64_t kSeedsRepeated = 4;
constexpr int kMappedBytesMin = 32 << 20;
constexpr int kKeptBytesMax = 1 << 30;

std::int64_t FromEnvironment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::atoll(text);
}

std::int64_t FirstSeed() {
  return FromEnvironment("CAIRN_SIM_FIRST", static_cast<std::int64_t>(std::random_device()()));
}

void Prepare(bool shows_log) {
  // What is made to fail is logged as an error: only of a seed that somebody looks at.
  ASSERT_TRUE(InitLogging("sim_test", "error", shows_log ? "" : "/dev/null").ok());
  // Stores come and go: their memory is not to be mapped anew, nor given back, each time.
  // Sanitizers have no such settings.
  // NOLINTBEGIN(concurrency-mt-unsafe): a simulation runs on one thread
  static_cast<void>(mallopt(M_MMAP_THRESHOLD, kMappedBytesMin));
  static_cast<void>(mallopt(M_TRIM_THRESHOLD, kKeptBytesMax));
  // NOLINTEND(concurrency-mt-unsafe)
}

void Explain(std::uint64_t seed, const SimOutcome& outcome, std::int64_t step_count) {
  std::cout << "seed " << seed << " fails at step " << outcome.failed_step << ": "
            << Message(outcome.status) << std::endl;
  const std::int64_t made_count = std::min(outcome.failed_step + 1, step_count);
  const std::vector<std::int64_t> needed = ShrinkSeed(seed, made_count);
  std::vector<bool> left_out(static_cast<std::size_t>(made_count), true);
  for (const std::int64_t step : needed) left_out[static_cast<std::size_t>(step)] = false;
  const SimOutcome shrunk = RunSeed(seed, made_count, left_out);
  std::cout << "these " << needed.size() << " steps are enough for: " << Message(shrunk.status)
            << "\n";
  for (const std::string& event : shrunk.events) std::cout << "  " << event << "\n";
}

// What any number of seeds worth the name comes to.
constexpr const char* kReached[] = {"another store refused",
                                    "answer",
                                    "checkpoint",
                                    "closed",
                                    "compute node crashed",
                                    "computed again",
                                    "created",
                                    "deleted",
                                    "deleted by somebody else",
                                    "died before its stream",
                                    "connection broken",
                                    "failed",
                                    "forked",
                                    "given back",
                                    "killed",
                                    "kept nothing more",
                                    "let go",
                                    "lost",
                                    "metadata disk full",
                                    "older store",
                                    "older store noticed",
                                    "opened",
                                    "opened by somebody else",
                                    "power cut",
                                    "read in shared memory",
                                    "replay buffer full",
                                    "resumed",
                                    "sealed",
                                    "stopped",
                                    "stream refused",
                                    "superseded",
                                    "taken back",
                                    "not superseded",
                                    "supersede refused",
                                    "sealed by the node",
                                    "sent again",
                                    "store checked",
                                    "store checked in use",
                                    "page packed",
                                    "flash full"};
constexpr std::int64_t kSeedsToReachAll = 500;

TEST(SimTest, RandomEventsKeepWhatWasAcknowledgedAndShowNothingElse) {
  const std::int64_t one = FromEnvironment("CAIRN_TEST_SEED", 0);
  Prepare(/*shows_log=*/one != 0);
  const std::int64_t first = one != 0 ? one : FirstSeed();
  const std::int64_t count = one != 0 ? 1 : FromEnvironment("CAIRN_SIM_SEEDS", kSeedsDefault);
  const std::int64_t step_count = FromEnvironment("CAIRN_SIM_STEPS", kStepsDefault);
  std::map<std::string, int> counts;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    // Said before: one that ends the process is to be repeated too.
    std::cout << "CAIRN_TEST_SEED=" << seed << std::endl;
    const SimOutcome outcome = RunSeed(static_cast<std::uint64_t>(seed), step_count);
    for (const auto& [name, n] : outcome.counts) counts[name] += n;
    if (outcome.status.ok()) continue;
    Explain(static_cast<std::uint64_t>(seed), outcome, step_count);
    FAIL() << "repeat with CAIRN_TEST_SEED=" << seed << ": " << Message(outcome.status);
  }
  std::cout << count << " seeds from CAIRN_TEST_SEED=" << first << ":";
  for (const auto& [name, n] : counts) std::cout << " " << name << "=" << n;
  std::cout << "\n";
  if (count < kSeedsToReachAll || step_count < kStepsDefault) return;
  for (const char* name : kReached) {
    EXPECT_GT(counts[name], 0) << "the seeds do not reach: " << name;
  }
}

TEST(SimTest, ASeedIsRepeatedToTheStep) {
  const std::int64_t one = FromEnvironment("CAIRN_TEST_SEED", 0);
  Prepare(/*shows_log=*/one != 0);
  const std::int64_t first = one != 0 ? one : FirstSeed();
  const std::int64_t step_count = FromEnvironment("CAIRN_SIM_STEPS", kStepsDefault);
  for (std::int64_t seed = first; seed < first + (one != 0 ? 1 : kSeedsRepeated); ++seed) {
    const SimOutcome once = RunSeed(static_cast<std::uint64_t>(seed), step_count);
    const SimOutcome again = RunSeed(static_cast<std::uint64_t>(seed), step_count);
    EXPECT_EQ(once.status, again.status) << "CAIRN_TEST_SEED=" << seed;
    EXPECT_EQ(once.trace, again.trace) << "CAIRN_TEST_SEED=" << seed;
    EXPECT_EQ(once.counts, again.counts) << "CAIRN_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace cairn::sim
