// Runs random histories, each of a seed of its own, and says what they reached.
//
// CAIRN_TEST_SEED=N repeats one history; CAIRN_TEST_HISTORIES says how many are run.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace cairn::kv {

using HistoryCounts = std::map<std::string, int>;

// What ends by itself has ended by then, however busy the machine is.
inline constexpr std::chrono::minutes kGiveBackTimeMax{2};

inline std::int64_t FromEnvironment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::atoll(text);
}

// More histories than these times as many are not tried to reach what is seldom reached.
inline constexpr std::int64_t kHistoriesFactorMax = 20;

// `run`: one history, in a directory that is new and removed behind it; adds to the counts. Goes on
// until the histories have reached each of `names`, which is a matter of chance, and fails where
// they do not; unless one is repeated.
inline void RunHistories(std::int64_t default_count, std::initializer_list<const char*> names,
                         const std::function<void(std::int64_t seed, const std::string& directory,
                                                  HistoryCounts& counts)>& run) {
  const std::int64_t one = FromEnvironment("CAIRN_TEST_SEED", 0);
  const std::int64_t first = one != 0 ? one : static_cast<std::int64_t>(std::random_device()());
  const std::int64_t count = one != 0 ? 1 : FromEnvironment("CAIRN_TEST_HISTORIES", default_count);
  HistoryCounts counts;
  const auto reached_all = [&] {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return counts[name] > 0; });
  };
  const std::int64_t end = first + (one != 0 ? 1 : count * kHistoriesFactorMax);
  for (std::int64_t seed = first; seed < end && (seed < first + count || !reached_all()); ++seed) {
    // Said before: a history that ends the process is to be repeated too.
    std::cout << "CAIRN_TEST_SEED=" << seed << std::endl;
    SCOPED_TRACE("repeat with CAIRN_TEST_SEED=" + std::to_string(seed));
    std::string directory = ::testing::TempDir() + "/cairn-history-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    run(seed, directory, counts);
    std::filesystem::remove_all(directory);
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << "histories from seed " << first << ":";
  for (const auto& [name, n] : counts) std::cout << " " << name << "=" << n;
  std::cout << "\n";
  if (one != 0) return;
  for (const char* name : names) {
    EXPECT_GT(counts[name], 0) << "the histories do not reach: " << name;
  }
}

}  // namespace cairn::kv
