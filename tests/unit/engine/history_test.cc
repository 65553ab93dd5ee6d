#include "common/log/log.h"
#include "tests/unit/engine/history_runs.h"
#include "tests/unit/engine/history_world.h"

namespace cairn::kv {
namespace {

constexpr int kStepCount = 150;
constexpr std::int64_t kHistoryCount = 2;

TEST(HistoryTest, EverySessionShowsItsLastCheckpointAndWhatFollowedIt) {
  ASSERT_TRUE(InitLogging("history_test", "error").ok());
  RunHistories(kHistoryCount,
               {"split", "delayed split", "merge", "repair", "evict", "buffer read", "checkpoint",
                "seal", "resumed", "metadata torn", "read from a high end", "relate", "spill",
                "page packed", "index page", "page moved", "move cut", "shrunk"},
               [](std::int64_t seed, const std::string& directory, HistoryCounts& counts) {
                 HistoryWorld world(static_cast<std::uint64_t>(seed), directory);
                 for (int i = 0; i < kStepCount && !::testing::Test::HasFailure(); ++i) {
                   world.Step();
                 }
                 if (!::testing::Test::HasFailure()) world.End();
                 for (const auto& [name, n] : world.counts()) counts[name] += n;
               });
}

}  // namespace
}  // namespace cairn::kv
