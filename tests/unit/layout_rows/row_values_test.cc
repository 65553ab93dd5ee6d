// What is encoded is what is decoded, for rows of every kind.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/layout/rows.h"
#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

constexpr int kRounds = 300;

TEST(RowValuesTest, SessionRowsRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const SessionRow row = RandomSessionRow(rng);
    const auto decoded = DecodeSessionRow(EncodeSessionRow(row));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->segment, row.segment);
    EXPECT_EQ(decoded->epoch, row.epoch);
    EXPECT_EQ(decoded->op_seq, row.op_seq);
    EXPECT_EQ(decoded->layout, row.layout);
    EXPECT_EQ(decoded->key, row.key);
    EXPECT_EQ(decoded->label, row.label);
    EXPECT_EQ(decoded->token_count, row.token_count);
    EXPECT_EQ(decoded->flash_bytes, row.flash_bytes);
    EXPECT_EQ(decoded->create_time_us, row.create_time_us);
    EXPECT_EQ(decoded->checkpoint_time_us, row.checkpoint_time_us);
    EXPECT_EQ(decoded->uid, row.uid);
    EXPECT_EQ(decoded->owner.owner, row.owner.owner);
    EXPECT_EQ(decoded->owner.number, row.owner.number);
    EXPECT_EQ(decoded->lifetime, row.lifetime);
    EXPECT_EQ(decoded->creator, row.creator);
    EXPECT_EQ(decoded->app, row.app);
  }
}

// What version 1 wrote ends with the times.
TEST(RowValuesTest, SessionRowsOfVersion1HaveNoIdentity) {
  SessionRow row;
  row.key.model_digest = std::string(kDigestBytes, 'm');
  row.key.rope_parameters = "none";
  row.layout = {1, 1, 40, KvFormat::kF16};
  row.epoch = Epoch(7);
  std::string bytes = EncodeSessionRow(row);
  bytes.resize(bytes.size() - 6);  // three strings of no bytes, a number, the lifetime and the app
  EXPECT_EQ(DecodeSessionRow(bytes).status().code(), absl::StatusCode::kDataLoss);
  bytes[0] = 1;
  const auto decoded = DecodeSessionRow(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->epoch, Epoch(7));
  EXPECT_EQ(decoded->uid, "");
  EXPECT_EQ(decoded->owner.owner, "");
  EXPECT_EQ(decoded->lifetime, SessionLifetime::kPermanent);
}

// What earlier versions wrote ends in front of the app.
TEST(RowValuesTest, RowsOfEarlierVersionsAreOfTheDefaultApp) {
  test::Rng rng(test::TestSeed());
  SessionRow session = RandomSessionRow(rng);
  session.app = AppId(5);
  std::string bytes = EncodeSessionRow(session);
  bytes.pop_back();
  EXPECT_EQ(DecodeSessionRow(bytes).status().code(), absl::StatusCode::kDataLoss);
  bytes[0] = 2;
  const auto old_session = DecodeSessionRow(bytes);
  ASSERT_TRUE(old_session.ok()) << old_session.status();
  EXPECT_EQ(old_session->app, kDefaultApp);
  SegmentRow segment = RandomSegmentRow(rng);
  segment.app = AppId(5);
  bytes = EncodeSegmentRow(segment);
  bytes.pop_back();
  EXPECT_EQ(DecodeSegmentRow(bytes).status().code(), absl::StatusCode::kDataLoss);
  bytes[0] = 1;
  const auto old_segment = DecodeSegmentRow(bytes);
  ASSERT_TRUE(old_segment.ok()) << old_segment.status();
  EXPECT_EQ(old_segment->app, kDefaultApp);
}

TEST(RowValuesTest, AUidOfAnotherLengthIsDataLoss) {
  test::Rng rng(test::TestSeed());
  SessionRow row = RandomSessionRow(rng);
  row.uid = "short";
  EXPECT_EQ(DecodeSessionRow(EncodeSessionRow(row)).status().code(), absl::StatusCode::kDataLoss);
  row = RandomSessionRow(rng);
  row.owner.owner = std::string(kUidBytes + 1, 'o');
  EXPECT_EQ(DecodeSessionRow(EncodeSessionRow(row)).status().code(), absl::StatusCode::kDataLoss);
  row = RandomSessionRow(rng);
  row.lifetime = static_cast<SessionLifetime>(4);
  EXPECT_EQ(DecodeSessionRow(EncodeSessionRow(row)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RowValuesTest, SegmentRowsRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const SegmentRow row = RandomSegmentRow(rng);
    const auto decoded = DecodeSegmentRow(EncodeSegmentRow(row));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->parent, row.parent);
    EXPECT_EQ(decoded->start, row.start);
    EXPECT_EQ(decoded->token_count, row.token_count);
    EXPECT_EQ(decoded->sealed, row.sealed);
    EXPECT_EQ(decoded->has_checkpoint, row.has_checkpoint);
    EXPECT_EQ(decoded->next_cluster_ids, row.next_cluster_ids);
    EXPECT_EQ(decoded->key, row.key);
    EXPECT_EQ(decoded->layout, row.layout);
    EXPECT_EQ(decoded->app, row.app);
  }
}

TEST(RowValuesTest, PartsRoundTripWhetherGroupedOrNot) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t entry_bytes = std::int64_t{64} << Draw(rng, 5);
    const std::vector<Part> parts = RandomParts(rng, entry_bytes);
    const auto decoded = DecodeParts(EncodeParts(parts, entry_bytes), entry_bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->size(), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const StoredPart& stored = (*decoded)[i];
      EXPECT_EQ(stored.id, parts[i].id);
      EXPECT_EQ(stored.kind, parts[i].extent->kind());
      EXPECT_EQ(stored.first_page, parts[i].extent->first());
      EXPECT_EQ(stored.page_count, parts[i].extent->page_count());
      EXPECT_EQ(stored.offset_bytes, parts[i].offset_bytes);
      EXPECT_EQ(stored.direction, parts[i].direction);
      EXPECT_EQ(stored.positions, parts[i].positions);
      EXPECT_EQ(stored.crcs, parts[i].crcs);
    }
  }
}

TEST(RowValuesTest, LinksRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<ClusterLink> links = RandomLinks(rng);
    const auto decoded = DecodeLinks(EncodeLinks(links));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, links);
  }
}

TEST(RowValuesTest, AGroupOfRecordsCostsAFewBytesARecord) {
  const auto map = std::make_shared<FreeMap>(1000, 2);
  const auto run =
      std::make_shared<Extent>(map, ExtentKind::kLogRun, PageIndex(10), 16, /*committed=*/true);
  std::vector<Part> parts;
  for (std::int64_t i = 0; i < 100; ++i) {
    Part part;
    part.id = PartId(81002 + i);
    part.SetExtent(run);
    part.offset_bytes = i * 512;
    part.positions = Positions::Range(4711 + i, 1);
    part.crcs = {static_cast<std::uint32_t>(i)};
    parts.push_back(part);
  }
  EXPECT_LE(EncodeParts(parts, 512).size(), 100 * 5 + 20U);
}

TEST(RowValuesTest, PolicyAndIndexRowsRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const PolicyRow policy = {.version = static_cast<std::int32_t>(rng.Below(1 << 30)),
                              .state = RandomBytes(rng, Draw(rng, 3000)),
                              .random_state = RandomBytes(rng, Draw(rng, 100))};
    const auto policy_back = DecodePolicyRow(EncodePolicyRow(policy));
    ASSERT_TRUE(policy_back.ok()) << policy_back.status();
    EXPECT_EQ(policy_back->version, policy.version);
    EXPECT_EQ(policy_back->state, policy.state);
    EXPECT_EQ(policy_back->random_state, policy.random_state);

    const ClusterKey key = {3, static_cast<std::int32_t>(Draw(rng, 8)), ClusterId(Draw(rng, 999))};
    IndexRow index;
    index.cluster = {key.head, key.cluster_id};
    index.row = RandomBytes(rng, Draw(rng, kIndexRowBytesMax + 1));
    index.stale = rng.Below(2) == 0;
    index.entry_count = Draw(rng, kPositionMax);
    const auto index_back = DecodeIndexRow(key, EncodeIndexRow(index));
    ASSERT_TRUE(index_back.ok()) << index_back.status();
    EXPECT_EQ(index_back->cluster, index.cluster);
    EXPECT_EQ(index_back->row, index.row);
    EXPECT_EQ(index_back->stale, index.stale);
    EXPECT_EQ(index_back->entry_count, index.entry_count);
  }
}

TEST(RowValuesTest, PositionsTokensRegionsProfilesAndIdsRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < kRounds; ++round) {
    const Positions positions = RandomPositions(rng, Draw(rng, 50));
    EXPECT_EQ(*DecodePositions(EncodePositions(positions)), positions);

    std::vector<std::int32_t> tokens(static_cast<std::size_t>(Draw(rng, kTokenBlockCount + 1)));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng.Next() >> 33);
    EXPECT_EQ(*DecodeTokens(EncodeTokens(tokens)), tokens);

    RegionBits bits;
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = rng.Below(2) == 0;
    EXPECT_EQ(*DecodeRegion(EncodeRegion(bits)), bits);

    const DeviceProfile profile = RandomProfile(rng);
    EXPECT_EQ(*DecodeDeviceProfile(EncodeDeviceProfile(profile)), profile);

    const std::int64_t id = RandomNumber(rng);
    EXPECT_EQ(*DecodeNextId(EncodeNextId(id)), id);
  }
}

TEST(RowValuesTest, TheLargestPositionIsKept) {
  const Positions positions = Positions::FromUnsorted({0, kPositionMax});
  EXPECT_EQ(*DecodePositions(EncodePositions(positions)), positions);
}

}  // namespace
}  // namespace cairn::kv
