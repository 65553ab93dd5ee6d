// Speed of the product kernels for every weight type: bytes of weights that are used a second,
// beside a plain read of as many bytes in the same round. Decoding computes one token at a time and
// should come close to the read; more tokens use each weight several times.
//
// usage: matmul_bench [ROUNDS]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "compute-node/kernels/matmul.h"
#include "tests/bench/read_rate.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kColumns = 2048;
// More than any cache holds.
constexpr std::int64_t kWeightBytes = std::int64_t{512} << 20;
// Of which each product of more tokens than one uses so much only, to end in a reasonable time.
constexpr std::int64_t kPrefillBytes = std::int64_t{32} << 20;
// One index of a product's loop.
constexpr std::int64_t kPieceBytes = 96LL * 1024;
constexpr std::int64_t kTokenCounts[] = {1, 8, 64};

struct BenchType {
  std::string_view name;
  WeightType type;
};

constexpr BenchType kBenchTypes[] = {
    {"F16", WeightType::kF16},      {"Q8_0", WeightType::kQ80}, {"Q4_0", WeightType::kQ40},
    {"Q4_1", WeightType::kQ41},     {"Q5_0", WeightType::kQ50}, {"Q5_1", WeightType::kQ51},
    {"IQ4_NL", WeightType::kIq4Nl}, {"Q2_K", WeightType::kQ2K}, {"Q3_K", WeightType::kQ3K},
    {"Q4_K", WeightType::kQ4K},     {"Q5_K", WeightType::kQ5K}, {"Q6_K", WeightType::kQ6K},
    {"IQ4_XS", WeightType::kIq4Xs},
};

// Huge pages, as the loader asks for.
std::byte* AllocateWeights() {
  void* memory =
      mmap(nullptr, kWeightBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(memory != MAP_FAILED);
  madvise(memory, kWeightBytes, MADV_HUGEPAGE);
  auto* words = static_cast<std::uint32_t*>(memory);
  test::Rng rng(1);
  for (std::int64_t i = 0; i < kWeightBytes / 4; ++i) {
    // Halves below 2, so that no scale is infinite.
    words[i] = static_cast<std::uint32_t>(rng.Next()) & 0x3fff3fffU;
  }
  return static_cast<std::byte*>(memory);
}

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Products {
 public:
  Products() : data_(AllocateWeights()) {
    test::Rng rng(2);
    for (float& value : values_) {
      value = rng.Normal();
    }
    QuantizeActivations(values_, blocks_);
  }

  const std::byte* data() const { return data_; }

  // Bytes of weights a second.
  double Rate(ThreadPool& pool, WeightType type, std::int64_t token_count) {
    const std::int64_t bytes = token_count == 1 ? kWeightBytes : kPrefillBytes;
    const std::int64_t rows = bytes / PanelBytes(type, kColumns) * kPanelRows;
    out_.resize(static_cast<std::size_t>(rows * token_count));
    const MatMulJob job{{type, rows, kColumns, data_}, nullptr, out_.data(), rows};
    const ActivationRows x{token_count, kColumns, values_.data(), blocks_.data()};
    const auto begin = std::chrono::steady_clock::now();
    MatMul(pool, x, {&job, 1});
    return static_cast<double>(PackedBytes(type, rows, kColumns)) / Seconds(begin);
  }

 private:
  std::byte* data_;
  std::vector<float> values_ = std::vector<float>(64 * kColumns);
  std::vector<ActivationBlock> blocks_ =
      std::vector<ActivationBlock>(64 * kColumns / kActivationBlock);
  std::vector<float> out_;
};

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One row of the table: medians over the rounds, each of which reads and multiplies in turn.
void MeasureType(Products& products, ThreadPool& pool, const BenchType& type, int round_count) {
  std::vector<double> reads;
  std::vector<double> rates[std::size(kTokenCounts)];
  for (int round = 0; round < round_count; ++round) {
    reads.push_back(ReadRate(pool, products.data(), kWeightBytes, kPieceBytes));
    for (std::size_t i = 0; i < std::size(kTokenCounts); ++i) {
      rates[i].push_back(products.Rate(pool, type.type, kTokenCounts[i]));
    }
  }
  const double read = Median(reads);
  const double one = Median(rates[0]);
  const double row_bytes = static_cast<double>(PanelBytes(type.type, kColumns)) / 16;
  std::printf("%-8s %10.1f %10.1f %8.0f %%", std::string(type.name).c_str(), read / 1e9, one / 1e9,
              100 * one / read);
  for (std::size_t i = 1; i < std::size(kTokenCounts); ++i) {
    const double rate = Median(rates[i]);
    std::printf(" %10.2f %8.0f", rate / 1e9,
                rate / row_bytes * kColumns * static_cast<double>(kTokenCounts[i]) / 1e9);
  }
  std::printf("\n");
}

int MeasureProducts(int round_count) {
  Products products;
  for (const int thread_count : {1, 2}) {
    ThreadPool pool(thread_count);
    std::printf("%d thread%s; GB/s of weights, 10^9 weights times tokens a second\n", thread_count,
                thread_count == 1 ? "" : "s");
    std::printf("%-8s %10s %10s %10s %10s %8s %10s %8s\n", "", "read", "1 token", "", "8 tokens",
                "", "64 tokens", "");
    for (const BenchType& type : kBenchTypes) {
      MeasureType(products, pool, type, round_count);
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  return cairn::compute::MeasureProducts(argc > 1 ? std::atoi(argv[1]) : 5);
}
