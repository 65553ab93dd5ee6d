// Random histories on a disk that fails: see fault_world.h.
//
// CAIRN_TEST_SEED=N repeats one history; CAIRN_TEST_HISTORIES says how many are run (default 24).
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/unit/engine/fault_world.h"

namespace cairn::kv {
namespace {

constexpr int kFaultStepCount = 150;

std::int64_t FromEnvironment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::atoll(text);
}

void RunHistory(std::int64_t seed, std::map<std::string, int>& counts) {
  SCOPED_TRACE("repeat with CAIRN_TEST_SEED=" + std::to_string(seed));
  std::string directory = ::testing::TempDir() + "/cairn-faults-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  {
    const auto faults = seed % 2 == 0 ? FaultWorld::Faults::kPassing : FaultWorld::Faults::kLasting;
    FaultWorld world(static_cast<std::uint64_t>(seed), directory, faults);
    absl::Status status;
    for (int i = 0; i < kFaultStepCount && status.ok(); ++i) status = world.Step();
    if (status.ok()) status = world.End();
    EXPECT_TRUE(status.ok()) << status;
    for (const auto& [name, n] : world.counts()) counts[name] += n;
  }
  std::filesystem::remove_all(directory);
}

TEST(FaultHistoryTest, WhatAFailingDiskLosesIsReportedAndNothingWrongIsServed) {
  ASSERT_TRUE(InitLogging("fault_history_test", "error").ok());
  const std::int64_t one = FromEnvironment("CAIRN_TEST_SEED", 0);
  const std::int64_t first = one != 0 ? one : static_cast<std::int64_t>(std::random_device()());
  const std::int64_t count = one != 0 ? 1 : FromEnvironment("CAIRN_TEST_HISTORIES", 24);
  std::map<std::string, int> counts;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    RunHistory(seed, counts);
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << "histories from seed " << first << ":";
  for (const auto& [name, n] : counts) std::cout << " " << name << "=" << n;
  std::cout << "\n";
  if (one != 0) return;
  for (const char* name :
       {"failed read", "failed write", "failed flush", "shortened", "lost write",
        "misdirected write", "rotten page read", "device lost", "power cut", "attachment ended",
        "cluster reported lost", "replace refused", "lost cluster repaired", "index rows lost",
        "page packed", "read failed at rest", "write failed at rest", "seal", "checkpoint"}) {
    EXPECT_GT(counts[name], 0) << "the histories do not reach: " << name;
  }
}

}  // namespace
}  // namespace cairn::kv
