// Random histories on a disk that fails: see fault_world.h.
#include "common/log/log.h"
#include "tests/unit/engine/fault_world.h"
#include "tests/unit/engine/history_runs.h"

namespace cairn::kv {
namespace {

constexpr int kFaultStepCount = 150;
constexpr std::int64_t kFaultHistoryCount = 5;

TEST(FaultHistoryTest, WhatAFailingDiskLosesIsReportedAndNothingWrongIsServed) {
  ASSERT_TRUE(InitLogging("fault_history_test", "error").ok());
  RunHistories(kFaultHistoryCount,
               {"failed read",
                "flipped read",
                "cluster reported unreadable",
                "read again",
                "failed write",
                "failed flush",
                "shortened",
                "lost write",
                "misdirected write",
                "rotten page read",
                "device lost",
                "power cut",
                "attachment ended",
                "not committed",
                "cluster reported lost",
                "replace refused",
                "lost cluster repaired",
                "index rows lost",
                "page packed",
                "read failed at rest",
                "write failed at rest",
                "seal",
                "checkpoint"},
               [](std::int64_t seed, const std::string& directory, HistoryCounts& counts) {
                 const auto faults =
                     seed % 2 == 0 ? FaultWorld::Faults::kPassing : FaultWorld::Faults::kLasting;
                 FaultWorld world(static_cast<std::uint64_t>(seed), directory, faults);
                 absl::Status status;
                 for (int i = 0; i < kFaultStepCount && status.ok(); ++i) status = world.Step();
                 if (status.ok()) status = world.End();
                 EXPECT_TRUE(status.ok()) << status;
                 for (const auto& [name, n] : world.counts()) counts[name] += n;
               });
}

}  // namespace
}  // namespace cairn::kv
