// The seed of a random test: new in every run, printed, and repeated by setting CAIRN_TEST_SEED.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

namespace cairn::test {

inline std::uint64_t TestSeed() {
  const char* given = std::getenv("CAIRN_TEST_SEED");  // NOLINT(concurrency-mt-unsafe): one thread
  const std::uint64_t seed =
      given != nullptr
          ? std::strtoull(given, nullptr, 10)
          : static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::cout << "seed: CAIRN_TEST_SEED=" << seed << " repeats this run\n";
  return seed;
}

}  // namespace cairn::test
