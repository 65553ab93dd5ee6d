// What it costs to ask an open session's packed rows for a part: as it is stored, and held.
// Clusters of 8 scattered entries, two to a pool; medians of rounds.
//
// usage: segment_parts_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "common/base/check.h"
#include "kv-node/engine/state/segment_parts.h"

namespace cairn::kv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr EntryLayout kLayout{1, 1, 64, KvFormat::kF16};
constexpr std::int64_t kClusterCount = 16384;
constexpr std::int64_t kFetchedTogether = 64;
constexpr int kPartFetchCount = 500;
constexpr int kRoundCount = 21;

ClusterKey KeyOf(std::int64_t id) { return {0, 0, ClusterId(id)}; }

void Fill(const std::shared_ptr<FreeMap>& map, PoolTable& pools, SegmentParts& parts,
          std::mt19937_64& random) {
  ExtentRef pool;
  for (std::int64_t id = 1; id <= kClusterCount; ++id) {
    Part part;
    part.id = PartId(1000000 + id);
    if (id % 2 == 1) {
      const auto first = map->Allocate(1);
      CAIRN_CHECK(first.ok());
      pool = std::make_shared<Extent>(map, ExtentKind::kPool, *first, 1, /*committed=*/true);
    }
    part.SetExtent(pool);
    part.direction = id % 2 == 1 ? Direction::kUp : Direction::kDown;
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < 8; ++i) {
      positions.push_back(i * 2048 + static_cast<std::int64_t>(random() % 2048));
    }
    part.positions = Positions::FromUnsorted(std::move(positions));
    part.crcs = {1};
    pools.Add({0, 0}, kLayout.EntryBytes(0), part);
    parts.Put(KeyOf(id), {part});
  }
}

// Nanoseconds for a part. `find` is given a cluster and where to keep what it found.
template <typename P, typename Fn>
double Measure(std::mt19937_64& random, Fn&& find) {
  std::vector<double> rounds;
  for (int round = 0; round < kRoundCount; ++round) {
    const auto begin = Clock::now();
    for (int fetch = 0; fetch < kPartFetchCount; ++fetch) {
      std::vector<P> kept;
      for (std::int64_t i = 0; i < kFetchedTogether; ++i) {
        find(KeyOf(1 + static_cast<std::int64_t>(random() % kClusterCount)), kept);
      }
      CAIRN_CHECK(std::ssize(kept) == kFetchedTogether);
    }
    const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
    rounds.push_back(time.count() / (kPartFetchCount * static_cast<double>(kFetchedTogether)));
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRoundCount / 2, rounds.end());
  return rounds[kRoundCount / 2];
}

int MeasureSegmentParts() {
  std::mt19937_64 random(1);  // NOLINT(bugprone-random-generator-seed): the same in every run
  const auto map = std::make_shared<FreeMap>(kClusterCount, 2);
  const auto pools = std::make_shared<PoolTable>(map);
  SegmentParts parts(kLayout, pools);
  Fill(map, *pools, parts, random);
  const double stored_ns =
      Measure<StoredPart>(random, [&](const ClusterKey& key, std::vector<StoredPart>& kept) {
        for (StoredPart& part : parts.rows().Find(key)) kept.push_back(std::move(part));
      });
  const double held_ns = Measure<Part>(random, [&](const ClusterKey& key, std::vector<Part>& kept) {
    for (Part& part : parts.Find(key)) kept.push_back(std::move(part));
  });
  const double cluster_bytes =
      static_cast<double>(parts.memory_bytes() + pools->memory_bytes()) / kClusterCount;
  std::printf("stored: %.0f ns a part, held: %.0f ns, memory: %.1f bytes a cluster\n", stored_ns,
              held_ns, cluster_bytes);
  return 0;
}

}  // namespace
}  // namespace cairn::kv

int main() { return cairn::kv::MeasureSegmentParts(); }
