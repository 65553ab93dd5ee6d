// CAIRN_TEST_SEED=N repeats one history; CAIRN_TEST_HISTORIES says how many are run (default 8).
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/unit/engine/history_world.h"

namespace cairn::kv {
namespace {

constexpr int kStepCount = 150;

std::int64_t FromEnvironment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::atoll(text);
}

TEST(HistoryTest, EverySessionShowsItsLastCheckpointAndWhatFollowedIt) {
  ASSERT_TRUE(InitLogging("history_test", "error").ok());
  const std::int64_t one = FromEnvironment("CAIRN_TEST_SEED", 0);
  const std::int64_t first = one != 0 ? one : static_cast<std::int64_t>(std::random_device()());
  const std::int64_t count = one != 0 ? 1 : FromEnvironment("CAIRN_TEST_HISTORIES", 8);
  std::map<std::string, int> counts;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("repeat with CAIRN_TEST_SEED=" + std::to_string(seed));
    std::string directory = ::testing::TempDir() + "/cairn-history-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    {
      HistoryWorld world(static_cast<std::uint64_t>(seed), directory);
      for (int i = 0; i < kStepCount && !::testing::Test::HasFailure(); ++i) world.Step();
      if (!::testing::Test::HasFailure()) world.End();
      for (const auto& [name, n] : world.counts()) counts[name] += n;
    }
    std::filesystem::remove_all(directory);
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << "histories from seed " << first << ":";
  for (const auto& [name, n] : counts) std::cout << " " << name << "=" << n;
  std::cout << "\n";
  if (one == 0) {
    for (const char* name :
         {"split", "delayed split", "merge", "repair", "evict", "buffer read", "checkpoint", "seal",
          "resumed", "metadata torn", "read from a high end", "neighbour", "spill", "page packed",
          "index page"}) {
      EXPECT_GT(counts[name], 0) << "the histories do not reach: " << name;
    }
  }
}

}  // namespace
}  // namespace cairn::kv
