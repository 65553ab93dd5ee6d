// Keys: what is parsed is what was built, and byte order is the order of the numbers.
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/layout/rows.h"
#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

ClusterKey RandomClusterKey(test::Rng& rng) {
  return {static_cast<std::int32_t>(Draw(rng, kLayerCountMax)),
          static_cast<std::int32_t>(Draw(rng, kHeadCountMax + 1)) - 1,
          ClusterId(Draw(rng, std::int64_t{1} << (1 + Draw(rng, 60))))};
}

TEST(RowKeysTest, ClusterKeysRoundTripAlsoForAllHeadsAndTheWindow) {
  test::Rng rng(test::TestSeed());
  for (const ClusterRowKind kind : {ClusterRowKind::kParts, ClusterRowKind::kMask,
                                    ClusterRowKind::kEvicted, ClusterRowKind::kCarried}) {
    for (int round = 0; round < 100; ++round) {
      ClusterKey key = RandomClusterKey(rng);
      if (round == 0) key = {0, kAllHeads, kWindowBuffer};
      const auto parsed =
          ParseClusterRowKey(ClusterRowKey(SegmentId(RandomNumber(rng)), key, kind));
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(parsed->key, key);
      EXPECT_EQ(parsed->kind, kind);
    }
  }
}

TEST(RowKeysTest, OtherKeysRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 100; ++round) {
    const SegmentId segment(RandomNumber(rng));
    const SessionId session(RandomNumber(rng));
    EXPECT_EQ(*ParseSessionKey(SessionKeyBytes(session)), session);
    EXPECT_EQ(**ParseSegmentHeadKey(SegmentHeadKey(segment)), segment);
    EXPECT_EQ(*ParseSegmentHeadKey(SegmentPolicyKey(segment)), std::nullopt);
    EXPECT_EQ(*ParseSegmentHeadKey(SegmentTokensKey(segment, round)), std::nullopt);
    const ClusterKey key = RandomClusterKey(rng);
    EXPECT_EQ(*ParseIndexRowKey(IndexRowKey(segment, key)), key);
    const std::int64_t region = Draw(rng, std::int64_t{1} << 32);
    const auto parsed = ParseRegionKey(RegionKey(segment, region));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->segment, segment);
    EXPECT_EQ(parsed->region, region);
  }
}

TEST(RowKeysTest, KeysOfASegmentBeginWithItsPrefix) {
  const SegmentId segment(77);
  const std::string prefix = SegmentPrefix(segment);
  const ClusterKey key = {1, 2, ClusterId(3)};
  for (const std::string& row :
       {SegmentHeadKey(segment), SegmentPolicyKey(segment), SegmentTokensKey(segment, 9),
        ClusterRowKey(segment, key, ClusterRowKind::kParts), IndexRowKey(segment, key),
        RegionKey(segment, 5)}) {
    EXPECT_EQ(row.substr(0, prefix.size()), prefix);
  }
}

TEST(RowKeysTest, BytesSortAsNumbersDo) {
  test::Rng rng(test::TestSeed());
  using Named = std::tuple<std::int64_t, ClusterKey>;
  std::vector<Named> keys(200);
  for (auto& [segment, key] : keys) {
    segment = Draw(rng, 3) << Draw(rng, 40);
    key = RandomClusterKey(rng);
  }
  std::sort(keys.begin(), keys.end());
  const auto bytes = [](const Named& key) {
    return IndexRowKey(SegmentId(std::get<0>(key)), std::get<1>(key));
  };
  for (std::size_t i = 1; i < keys.size(); ++i) {
    EXPECT_LE(bytes(keys[i - 1]), bytes(keys[i]));
    EXPECT_EQ(bytes(keys[i - 1]) == bytes(keys[i]), keys[i - 1] == keys[i]);
  }
}

TEST(RowKeysTest, KeysOfAnotherLengthOrKindAreDataLoss) {
  const SegmentId segment(1);
  const ClusterKey key = {0, 0, ClusterId(0)};
  const std::string cluster = ClusterRowKey(segment, key, ClusterRowKind::kParts);
  for (std::size_t size = 0; size < cluster.size() + 3; ++size) {
    if (size == cluster.size()) continue;
    const std::string bytes = (cluster + "more").substr(0, size);
    EXPECT_EQ(ParseClusterRowKey(bytes).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  std::string unknown_kind = cluster;
  unknown_kind[12] = 'z';
  EXPECT_EQ(ParseClusterRowKey(unknown_kind).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseSessionKey("short").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseSegmentHeadKey("12345678").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseIndexRowKey("").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseRegionKey("123456789012+").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseSegmentHeadKey(SegmentHeadKey(segment) + "+").status().code(),
            absl::StatusCode::kDataLoss);
}

// A flipped top bit must not become a negative id.
TEST(RowKeysTest, NegativeIdsAreDataLoss) {
  const SegmentId segment(1);
  const ClusterKey key = {0, 0, ClusterId(0)};
  const auto flipped = [](std::string bytes, std::size_t at) {
    bytes[at] = static_cast<char>(static_cast<std::uint8_t>(bytes[at]) ^ 0x80);
    return bytes;
  };
  const std::string cluster = ClusterRowKey(segment, key, ClusterRowKind::kParts);
  const std::string index = IndexRowKey(segment, key);
  const absl::Status answers[] = {
      ParseSessionKey(flipped(SessionKeyBytes(SessionId(1)), 0)).status(),
      ParseSegmentHeadKey(flipped(SegmentHeadKey(segment), 0)).status(),
      ParseClusterRowKey(flipped(cluster, 0)).status(),
      ParseClusterRowKey(flipped(cluster, cluster.size() - 8)).status(),
      ParseIndexRowKey(flipped(index, 0)).status(),
      ParseIndexRowKey(flipped(index, index.size() - 8)).status(),
      ParseRegionKey(flipped(RegionKey(segment, 0), 0)).status(),
  };
  for (const absl::Status& answer : answers) {
    EXPECT_EQ(answer.code(), absl::StatusCode::kDataLoss) << answer;
  }
}

}  // namespace
}  // namespace cairn::kv
