// cairn-kv-util verify: what it says of a whole store, and of one that is damaged in one way.
#include "tests/unit/util/damages.h"

namespace cairn::kv {
namespace {

TEST_F(StoreTest, WholeStoreIsCleanAndNotAByteChanges) {
  const auto before = Files();
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 0) << Joined(lines);
  ASSERT_EQ(lines.size(), 1U) << Joined(lines);
  EXPECT_TRUE(Has(lines, "summary findings=0 sessions=3 segments=4 ")) << Joined(lines);
  EXPECT_EQ(Files(), before);
}

TEST_F(StoreTest, StoreWithPackedRunsIsWhole) {
  // Links are a reason in each layer, wherever the clusters lie.
  EditRows([this](MetaReader&, MetaBatch& batch) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      batch.Put(Family::kCoretrieval, LinkRowKey(sealed_, {layer, 0, ClusterId(1)}),
                EncodeLinks({{ClusterId(2), 5}}));
    }
  });
  // A segment without carried entries: all that its clusters leave behind is free.
  ASSERT_NO_FATAL_FAILURE(OpenEngine());
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 2));
  ASSERT_TRUE(TakeCheckpoint(*session, 0, 2).ok());
  AppendAll(*session, 1, Positions::Range(2, 2));
  ASSERT_TRUE(TakeCheckpoint(*session, 2, 4, /*seal=*/true).ok());
  session.reset();
  CloseEngine();
  defragment_ = true;
  ASSERT_NO_FATAL_FAILURE(OpenEngine());
  // Clusters of 20 and 40 entries in each of two heads of two layers.
  const std::int64_t layer_bytes = std::int64_t{2} * 60 * layout_.EntryBytes(0);
  const std::int64_t layer_pages = (layer_bytes + kPageBytes - 1) / kPageBytes;
  const std::int64_t packed_bytes = layout_.layer_count * (layer_pages + 1) * kPageBytes;
  ASSERT_TRUE(WaitForStats(
      [&](const KvStats& stats) { return stats.write_defragment_bytes == packed_bytes; }));
  CloseEngine();
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 0) << Joined(lines);
  EXPECT_TRUE(Has(lines, "summary findings=0 sessions=4 segments=6 ")) << Joined(lines);
  defragment_ = false;
  ASSERT_NO_FATAL_FAILURE(OpenEngine());
  Positions grown = Positions::Range(0, 20);
  grown.AppendAll(Positions::Range(60, 20));
  ExpectCluster(*Open(talk_), 1, grown);
  ExpectCluster(*Open(fork_), 2, Positions::Range(20, 30));
  EXPECT_EQ(Stats().write_defragment_bytes, 0);
}

TEST_F(StoreTest, WhatClustersLeaveBehindIsInNoRecord) {
  ASSERT_NO_FATAL_FAILURE(OpenEngine());
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 2));
  ASSERT_TRUE(TakeCheckpoint(*session, 0, 2).ok());
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout_.head_count; ++head) {
      session->Send(Replace{layer, head, {ClusterId(1)}, {}, {}, {}, Positions::Range(0, 2)});
    }
  }
  AppendAll(*session, 2, Positions::Range(2, 2));
  ASSERT_TRUE(TakeCheckpoint(*session, 2, 4).ok());
  session.reset();
  CloseEngine();
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 0) << Joined(lines);
}

TEST_F(StoreTest, DamagedStoreIsNotChangedEither) {
  EditRows([this](MetaReader&, MetaBatch& batch) {
    batch.Delete(Family::kSegments, SegmentHeadKey(sealed_));
  });
  const auto before = Files();
  Verify();
  EXPECT_GT(finding_count_, 0);
  EXPECT_EQ(Files(), before);
}

TEST_F(StoreTest, StoreInUseIsRefused) {
  const auto file = ExtentFile::Open({.directory = dir_.path()});
  ASSERT_TRUE(file.ok());
  const auto count = VerifyStore(Tool(), [](const std::string&) {});
  EXPECT_EQ(count.status().code(), absl::StatusCode::kUnavailable) << count.status();
  EXPECT_NE(Message(count.status()).find("another cairn-kv-node uses"), std::string::npos);
}

TEST_F(StoreTest, TwoMayLookAtOnceAndNoDaemonStartsMeanwhile) {
  const auto looks = ExtentFile::Open({.directory = dir_.path(), .read_only = true});
  ASSERT_TRUE(looks.ok());
  Verify();
  EXPECT_EQ(finding_count_, 0);
  const auto daemon =
      ExtentFile::Open({.directory = dir_.path(), .lock_wait = std::chrono::milliseconds(0)});
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StoreTest, DirectoryWithoutAStoreCannotBeChecked) {
  const test::TempDir empty;
  const auto count = VerifyStore({.directory = empty.path()}, [](const std::string&) {});
  EXPECT_EQ(count.status().code(), absl::StatusCode::kNotFound) << count.status();
}

TEST_F(StoreTest, EveryBitOfAPartIsCovered) {
  // One byte in every piece of every part: its first.
  std::vector<std::int64_t> offsets;
  EditRows([&](MetaReader& reader, MetaBatch& batch) {
    for (const Row& row : RowsOf(reader, Family::kClusters)) {
      const ClusterRowKind kind = ParseClusterRowKey(row.first)->kind;
      if (kind != ClusterRowKind::kParts && kind != ClusterRowKind::kCarried) continue;
      const StoredPart part = PartsIn(row).back();
      offsets.push_back(part.first_page.value() * kPageBytes + part.offset_bytes);
    }
    batch.Put(Family::kConfig, "note", "");  // an edit must change something
    batch.Delete(Family::kConfig, "note");
  });
  ASSERT_GT(offsets.size(), 20U);
  for (const std::int64_t offset : offsets) {
    FlipByte(offset);
    const std::vector<std::string> lines = Verify();
    EXPECT_EQ(finding_count_, 1) << Joined(lines);
    EXPECT_TRUE(Has(lines, fmt::format("page={} ", offset / kPageBytes))) << Joined(lines);
    EXPECT_TRUE(Has(lines, "kind=page_damaged")) << Joined(lines);
    FlipByte(offset);
  }
  Verify();
  EXPECT_EQ(finding_count_, 0);
}

TEST_F(StoreTest, DamagedSuperblockCopyIsNamed) {
  FlipByte(kPageBytes + 30);
  const auto before = Files();
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(Files(), before);
  EXPECT_EQ(finding_count_, 1);
  EXPECT_TRUE(Has(lines, "kind=superblock")) << Joined(lines);
}

TEST_F(StoreTest, TwoDamagedSuperblockCopiesAreAFinding) {
  FlipByte(30);
  FlipByte(kPageBytes + 30);
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 1);
  EXPECT_TRUE(Has(lines, "both superblock copies are damaged")) << Joined(lines);
}

TEST_F(StoreTest, MetadataOfAnotherStoreIsAFinding) {
  EditRows([](MetaReader&, MetaBatch& batch) {
    batch.Put(Family::kConfig, "store_id", std::string(16, 'o'));
  });
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 1);
  EXPECT_TRUE(Has(lines, "kind=metadata")) << Joined(lines);
}

TEST_F(StoreTest, MissingStoreIdIsAFinding) {
  EditRows([](MetaReader&, MetaBatch& batch) { batch.Delete(Family::kConfig, "store_id"); });
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 1);
  EXPECT_TRUE(Has(lines, "no store id")) << Joined(lines);
}

TEST_F(StoreTest, MissingMetadataIsAFinding) {
  std::filesystem::remove_all(dir_.File(kMetaDirectoryName));
  const std::vector<std::string> lines = Verify();
  EXPECT_EQ(finding_count_, 1);
  EXPECT_TRUE(Has(lines, "kind=metadata")) << Joined(lines);
}

TEST_F(StoreTest, TwoSessionsOnOneSegmentAreNamed) {
  EditRows([this](MetaReader& reader, MetaBatch& batch) {
    SessionRow row = SessionOf(reader, alone_);
    row.segment = OpenSegmentOf(reader, talk_);
    row.token_count = kTokens;
    batch.Put(Family::kSessions, SessionKeyBytes(alone_), EncodeSessionRow(row));
  });
  const std::vector<std::string> lines = Verify();
  EXPECT_TRUE(Has(lines, "is another session's too")) << Joined(lines);
  EXPECT_TRUE(Has(lines, "kind=orphan")) << Joined(lines);
}

class NamedDamage : public DamagedStoreTest,
                    public testing::WithParamInterface<DamagedStoreTest::Damage> {};

TEST_P(NamedDamage, IsFound) {
  EditRows([this](MetaReader& reader, MetaBatch& batch) { GetParam().edit(*this, reader, batch); });
  const std::vector<std::string> lines = Verify();
  EXPECT_GT(finding_count_, 0);
  EXPECT_TRUE(Has(lines, GetParam().finding)) << Joined(lines);
}

INSTANTIATE_TEST_SUITE_P(, NamedDamage, testing::ValuesIn(DamagedStoreTest::Damages()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::kv
