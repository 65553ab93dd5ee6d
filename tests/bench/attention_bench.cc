// Speed of the attention kernels: pairs of a query row and an entry a second, and for one token,
// which is bound by reading, bytes of keys and values a second beside a plain read of as many bytes
// in the same round.
//
// As BlockAttention calls them: each block of entries is converted once for the heads of a group
// and the tokens of a task; tasks are spread over two threads.
//
// usage: attention_bench [ROUNDS [DEPTH]]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kernels/thread_pool.h"
#include "tests/bench/read_rate.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

// More than any cache holds.
constexpr std::int64_t kBytes = std::int64_t{512} << 20;
// Entries that many tokens attend are used again and again: so many heads are enough.
constexpr std::int64_t kPrefillHeads = 4;

struct BenchShape {
  std::int64_t head_dim;
  std::int64_t group_size;
};

constexpr BenchShape kBenchShapes[] = {{64, 1}, {64, 4}, {64, 7}, {128, 1}, {128, 4}, {128, 6}};
constexpr std::int64_t kTokenCounts[] = {1, 64, 128};
constexpr KvFormat kBenchFormats[] = {KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4};

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::byte* AllocateEntries() {
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(memory != MAP_FAILED);
  madvise(memory, kBytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

// Entries of normally distributed numbers; a few thousand different ones are copied all over.
void FillEntries(KvFormat format, std::int64_t head_dim, std::byte* data) {
  constexpr std::int64_t kDistinct = 4096;
  const std::int64_t entry_bytes = KvEntryBytes(format, head_dim);
  test::Rng rng(1);
  std::vector<float> row(static_cast<std::size_t>(head_dim));
  for (std::int64_t e = 0; e < kBytes / entry_bytes; ++e) {
    std::byte* entry = data + e * entry_bytes;
    if (e >= kDistinct) {
      std::copy_n(entry - kDistinct * entry_bytes, entry_bytes, entry);
      continue;
    }
    for (float& value : row) {
      value = rng.Normal();
    }
    StoreKvEntry(row, row, format, entry);
  }
}

class AttentionRun {
 public:
  AttentionRun(const BenchShape& shape, KvFormat format, std::int64_t token_count,
               std::int64_t depth, const std::byte* data)
      : shape_(shape),
        format_(format),
        token_count_(token_count),
        depth_(depth),
        head_bytes_(depth * KvEntryBytes(format, shape.head_dim)),
        head_count_(token_count == 1 ? kBytes / head_bytes_ : kPrefillHeads),
        task_count_(head_count_ * ((token_count + kTaskTokens - 1) / kTaskTokens)),
        data_(data) {
    const std::int64_t rows = shape.group_size * std::min(token_count, kTaskTokens);
    queries_.resize(static_cast<std::size_t>(rows * shape.head_dim));
    test::Rng rng(2);
    for (float& value : queries_) {
      value = rng.Normal();
    }
    states_.resize(
        static_cast<std::size_t>(task_count_ * rows * AttentionStateFloats(shape.head_dim)));
  }

  // Seconds of attending all entries of all heads.
  double Time(ThreadPool& pool) {
    InitAttention(states_, shape_.head_dim);
    const auto begin = std::chrono::steady_clock::now();
    pool.ParallelFor(task_count_, [&](std::int64_t task) { Attend(task); });
    return Seconds(begin);
  }

  double pair_count() const {
    return static_cast<double>(head_count_ * shape_.group_size * token_count_ * depth_);
  }
  double byte_count() const { return static_cast<double>(head_count_ * head_bytes_); }

 private:
  static constexpr std::int64_t kTaskTokens = 64;

  void Attend(std::int64_t task) {
    const std::int64_t entry_bytes = KvEntryBytes(format_, shape_.head_dim);
    const std::byte* head = data_ + task % head_count_ * head_bytes_;
    const std::int64_t tokens = std::min(token_count_, kTaskTokens);
    const std::int64_t row_floats = tokens * AttentionStateFloats(shape_.head_dim);
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    std::vector<const std::byte*> entries(static_cast<std::size_t>(depth_));
    for (std::int64_t e = 0; e < depth_; ++e) {
      entries[static_cast<std::size_t>(e)] = head + e * entry_bytes;
    }
    const std::int64_t calls = tokens == 1 ? 1 : shape_.group_size;
    const std::int64_t rows = tokens == 1 ? shape_.group_size : tokens;
    KvBlock block;
    const auto block_at = [&](std::size_t first) {
      return std::span(entries)
          .subspan(std::min(first, entries.size()))
          .first(std::min<std::size_t>(kAttentionBlockEntries,
                                       entries.size() - std::min(first, entries.size())));
    };
    for (std::size_t e = 0; e < entries.size(); e += kAttentionBlockEntries) {
      LoadBlock(block_at(e), block_at(e + kAttentionBlockEntries), format_, shape_.head_dim, block);
      for (std::int64_t call = 0; call < calls; ++call) {
        float* states = states_.data() + task * shape_.group_size * row_floats;
        AttendBlock(block, scale,
                    {queries_.data() + call * rows * shape_.head_dim, rows, shape_.head_dim}, {},
                    {states + call * row_floats,
                     static_cast<std::size_t>(rows * AttentionStateFloats(shape_.head_dim))});
      }
    }
  }

  const BenchShape shape_;
  const KvFormat format_;
  const std::int64_t token_count_;
  const std::int64_t depth_;
  const std::int64_t head_bytes_;
  const std::int64_t head_count_;
  const std::int64_t task_count_;
  const std::byte* data_;
  std::vector<float> queries_;
  std::vector<float> states_;
};

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One row of the table: medians over the rounds, each of which reads and attends in turn.
void MeasureShape(ThreadPool& pool, const BenchShape& shape, KvFormat format, std::int64_t depth,
                  int round_count, const std::byte* data) {
  std::printf("%4ld %3ld %-4s", shape.head_dim, shape.group_size,
              std::string(KvFormatName(format)).c_str());
  for (const std::int64_t token_count : kTokenCounts) {
    AttentionRun run(shape, format, token_count, depth, data);
    std::vector<double> reads;
    std::vector<double> times;
    for (int round = 0; round < round_count; ++round) {
      if (token_count == 1) {
        reads.push_back(ReadRate(pool, data, kBytes, depth * KvEntryBytes(format, shape.head_dim)));
      }
      times.push_back(run.Time(pool));
    }
    const double time = Median(times);
    if (token_count == 1) {
      const double read = Median(reads);
      const double rate = run.byte_count() / time;
      std::printf(" %6.1f %6.1f %4.0f %%", read / 1e9, rate / 1e9, 100 * rate / read);
    }
    std::printf(" %8.0f", run.pair_count() / time / 1e6);
  }
  std::printf("\n");
}

int MeasureAttention(int round_count, std::int64_t depth) {
  std::byte* data = AllocateEntries();
  ThreadPool pool(2);
  std::printf("2 threads, depth %ld; GB/s of entries, 10^6 pairs of query row and entry a second\n",
              depth);
  std::printf("%4s %3s %-4s %6s %6s %6s %8s %8s %8s\n", "dim", "grp", "", "read", "decode", "",
              "1 token", "64", "128");
  for (const KvFormat format : kBenchFormats) {
    for (const std::int64_t head_dim : {64, 128}) {
      FillEntries(format, head_dim, data);
      for (const BenchShape& shape : kBenchShapes) {
        if (shape.head_dim == head_dim) {
          MeasureShape(pool, shape, format, depth, round_count, data);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  return cairn::compute::MeasureAttention(argc > 1 ? std::atoi(argv[1]) : 5,
                                          argc > 2 ? std::atoll(argv[2]) : 16384);
}
