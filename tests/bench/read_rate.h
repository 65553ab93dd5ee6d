// What kernels that wait for memory are compared with: a plain read of as many bytes by as many
// threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

// Reads `size_bytes` random bytes, in pieces as large as the kernels' tasks; bytes a second.
inline double ReadRate(ThreadPool& pool, const std::byte* data, std::int64_t size_bytes,
                       std::int64_t piece_bytes) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(size_bytes / piece_bytes));
  const auto begin = std::chrono::steady_clock::now();
  pool.ParallelFor(std::ssize(sums), [&](std::int64_t piece) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(data + piece * piece_bytes);
    std::uint64_t lanes[32] = {};
    for (std::int64_t i = 0; i + 32 <= piece_bytes / 8; i += 32) {
      for (std::int64_t lane = 0; lane < 32; ++lane) {
        lanes[lane] += words[i + lane];
      }
    }
    for (const std::uint64_t lane : lanes) {
      sums[static_cast<std::size_t>(piece)] += lane;
    }
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) {
    total += sum;
  }
  // The comparison keeps the loop.
  CAIRN_CHECK(total != 0);
  return static_cast<double>(std::ssize(sums) * piece_bytes) / time.count();
}

}  // namespace cairn::compute
