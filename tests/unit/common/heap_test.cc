#include "common/base/heap.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(HeapTest, WhatWasFreedBetweenBlocksInUseGoesBack) {
#ifdef CAIRN_SANITIZED
  GTEST_SKIP() << "a sanitizer's heap keeps what was freed";
#endif
  constexpr std::size_t kBlockBytes = 16384;
  constexpr int kBlockCount = 4096;
  std::vector<std::unique_ptr<char[]>> freed;
  std::vector<std::unique_ptr<char[]>> kept;
  for (int i = 0; i < kBlockCount; ++i) {
    freed.push_back(std::make_unique<char[]>(kBlockBytes));
    if (i % 16 == 0) kept.push_back(std::make_unique<char[]>(64));
  }
  const std::int64_t full_bytes = ResidentBytes();
  freed.clear();
  ReturnFreedMemory();
  const auto block_bytes = static_cast<std::int64_t>(kBlockBytes);
  EXPECT_LT(ResidentBytes(), full_bytes - kBlockCount * block_bytes / 2);
  EXPECT_EQ(std::ssize(kept), kBlockCount / 16);
}

}  // namespace
}  // namespace cairn
