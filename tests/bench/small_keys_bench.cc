// Speed of ranking by small keys: bytes of codes a second, scored by the queries of all KV heads,
// beside a plain read of as many bytes; then the time of a layer, softmax and sums included.
//
// The codes of several layers are gone through in turn, more than any cache holds, as decoding
// does.
//
// usage: small_keys_bench [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "compute-node/retrieval/kvswap/small_keys.h"
#include "tests/bench/read_rate.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kCodeBytes = std::int64_t{256} << 20;

struct Case {
  const char* name;
  const char* shape;
  int kv_heads;
};
constexpr Case kCases[] = {{"Llama-3.2-1B", "22221111", 8},
                           {"Qwen2.5-1.5B", "22221111", 2},
                           {"of 4 bits", "4444", 8},
                           {"of 8 bits", "8888", 8}};

double MedianSeconds(int round_count, const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < round_count; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<CodedQuery> Queries(const KeyCodeShape& shape, int count) {
  test::Rng rng(2);
  std::vector<CodedQuery> queries;
  for (int q = 0; q < count; ++q) {
    std::vector<float> numbers(static_cast<std::size_t>(shape.axis_count()));
    for (float& number : numbers) number = rng.Normal();
    queries.emplace_back(shape, numbers);
  }
  return queries;
}

void MeasureCodes(ThreadPool& pool, const Case& of, const std::vector<std::byte>& codes,
                  int round_count) {
  const KeyCodeShape shape = *KeyCodeShape::Parse(of.shape);
  const std::vector<CodedQuery> queries = Queries(shape, of.kv_heads);
  const std::int64_t layer_bytes = kTokens * shape.RowBytes();
  const std::int64_t layers = std::ssize(codes) / layer_bytes;
  std::vector<std::vector<float>> scores(static_cast<std::size_t>(layers * of.kv_heads));
  for (std::vector<float>& each : scores) each.resize(kTokens);
  const double bytes = static_cast<double>(layers * layer_bytes) / 1e9;
  const double read = ReadRate(pool, codes.data(), layers * layer_bytes, layer_bytes) / 1e9;
  const double seconds = MedianSeconds(round_count, [&] {
    pool.ParallelFor(layers, [&](std::int64_t layer) {
      std::vector<float*> rows;
      rows.reserve(static_cast<std::size_t>(of.kv_heads));
      for (int q = 0; q < of.kv_heads; ++q) {
        rows.push_back(scores[static_cast<std::size_t>(layer * of.kv_heads + q)].data());
      }
      ScoreKeyCodes(shape, queries, codes.data() + layer * layer_bytes, kTokens / kCodePanelRows,
                    rows);
    });
  });
  std::printf("  score   %5.1f GB/s, plain read %5.1f GB/s: %.2f\n", bytes / seconds, read,
              bytes / seconds / read);
}

void MeasureLayer(ThreadPool& pool, const Case& of, int round_count) {
  const KeyCodeShape shape = *KeyCodeShape::Parse(of.shape);
  const std::vector<CodedQuery> queries = Queries(shape, of.kv_heads);
  SmallKeys keys(shape);
  keys.Resize(kTokens);
  test::Rng rng(3);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(shape.axis_count()));
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::size_t axis = 0; axis < row.size(); ++axis) {
      const int largest = shape.CodeMaxOf(static_cast<std::int64_t>(axis));
      row[axis] = static_cast<std::uint8_t>(rng.Below(static_cast<std::uint64_t>(largest) + 1));
    }
    keys.Put(token, row);
  }
  ScoreScratch scratch;
  const double seconds =
      MedianSeconds(round_count, [&] { keys.Score(queries, 0.125F, &pool, scratch); });
  std::printf("  a layer %5.0f us\n", seconds * 1e6);
}

int Main(int argc, char** argv) {
  const int round_count = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  std::vector<std::byte> codes(static_cast<std::size_t>(kCodeBytes));
  test::Rng rng(1);
  for (std::byte& code : codes) code = static_cast<std::byte>(rng.Next());
  std::printf("%d threads, %lld tokens\n", pool.thread_count(), static_cast<long long>(kTokens));
  for (const Case& each : kCases) {
    std::printf("%s, %s, %d KV heads\n", each.name, each.shape, each.kv_heads);
    MeasureCodes(pool, each, codes, round_count);
    MeasureLayer(pool, each, round_count);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) { return cairn::compute::Main(argc, argv); }
