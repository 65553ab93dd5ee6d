#include "compute-node/kernels/read_bandwidth.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
// Some milliseconds: less than a scheduler's time slice, far more than a fork and join.
constexpr std::int64_t kSectionPieces = 64;

// Sixteen independent sums: enough loads in flight for any memory.
std::uint64_t SumPiece(const std::byte* piece) {
  constexpr std::size_t kLanes = 16;
  std::array<std::uint64_t, kLanes> sums = {};
  for (std::int64_t at = 0; at < kPieceBytes; at += sizeof(sums)) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), piece + at, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) {
      sums[i] += words[i];
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) {
    sum += part;
  }
  return sum;
}

}  // namespace

std::int64_t ReadProbeBufferBytes() {
  constexpr std::int64_t kMin = std::int64_t{64} << 20;
  constexpr std::int64_t kMax = std::int64_t{512} << 20;
  return std::clamp<std::int64_t>(2 * sysconf(_SC_LEVEL3_CACHE_SIZE), kMin, kMax);
}

absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(ThreadPool& pool, std::int64_t buffer_bytes,
                                                   std::chrono::milliseconds time) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t piece_count = buffer_bytes / kPieceBytes;
  CAIRN_CHECK(piece_count > 0);
  const auto mapped = static_cast<std::size_t>(piece_count * kPieceBytes);
  void* const memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("allocate {} bytes to measure memory with", mapped));
  }
  // As the weights are kept.
  static_cast<void>(madvise(memory, mapped, MADV_HUGEPAGE));
  auto* const bytes = static_cast<std::byte*>(memory);
  pool.ParallelFor(piece_count, [&](std::int64_t piece) {
    std::memset(bytes + piece * kPieceBytes, 1, static_cast<std::size_t>(kPieceBytes));
  });
  ReadBandwidth result{0, pool.thread_count(), piece_count * kPieceBytes};
  std::atomic<std::uint64_t> sum{0};  // so that the reads have a use
  constexpr int kPassesMin = 3;
  const Clock::time_point begin = Clock::now();
  for (int pass = 0; pass < kPassesMin || Clock::now() - begin < time; ++pass) {
    for (std::int64_t first = 0; first < piece_count; first += kSectionPieces) {
      const std::int64_t count = std::min(kSectionPieces, piece_count - first);
      const Clock::time_point section_begin = Clock::now();
      pool.ParallelFor(count, [&](std::int64_t piece) {
        sum.fetch_add(SumPiece(bytes + (first + piece) * kPieceBytes), std::memory_order_relaxed);
      });
      const std::chrono::duration<double> taken = Clock::now() - section_begin;
      const auto read = static_cast<double>(count * kPieceBytes);
      result.bytes_per_second = std::max(result.bytes_per_second, read / taken.count());
    }
  }
  CAIRN_CHECK(sum.load() != 0);
  munmap(memory, mapped);
  return result;
}

}  // namespace cairn::compute
