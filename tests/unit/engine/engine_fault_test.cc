// The engine over a disk that fails: what is lost is said to be lost, and nothing wrong is ever
// served.
#include "tests/unit/engine/engine_fault_fixture.h"

namespace cairn::kv {
namespace {

TEST_F(EngineFaultTest, DamagedCarriedEntryIsReportedWithWhatToDo) {
  Create();
  session_->Send(StageCarried{0,
                              {{0, kWindowBuffer, Positions::Range(0, 5), Positions::Range(0, 5),
                                EntriesBytes(layout_, kFaultSalt, 0, 0, Positions::Range(0, 5))}}});
  ASSERT_EQ(TakeCheckpoint(0, 5).ToString(), "OK");
  ASSERT_TRUE(session_->Read(GetCarried{0}).ok());
  CorruptEverything();
  const absl::Status status = session_->Read(GetCarried{0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  for (const std::string_view text : {"fails its check", "can still be read, and computed again"}) {
    EXPECT_NE(ToStd(status.message()).find(text), std::string_view::npos) << status;
  }
  EXPECT_EQ(Stats().lost_part_count, 1);
}

TEST_F(EngineFaultTest, ADamagedIndexRunCostsItsRowsOnly) {
  Create();
  constexpr std::int64_t kClusters = 90;  // enough for a run
  PutIndexRows put;
  for (std::int64_t id = 1; id <= kClusters; ++id) {
    AppendTokens(id, Positions::Range(id - 1, 1));
    put.rows.push_back({{0, ClusterId(id)}, std::string(40, 'r'), false, 1});
  }
  session_->Send(put);
  ASSERT_EQ(TakeCheckpoint(0, kClusters).ToString(), "OK");
  ASSERT_GT(Stats().write_index_bytes, 0);
  const auto row_count = [this] {
    const auto reply = session_->Read(GetIndex{0});
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? std::ssize(std::get<IndexReply>(*reply).rows) : -1;
  };
  const auto record_count = [this] {
    const auto reply = session_->Read(FetchIndex{0});
    EXPECT_TRUE(reply.ok()) << reply.status();
    std::int64_t count = 0;
    if (!reply.ok()) return count;
    for (const Span& span : std::get<FetchReply>(*reply).clusters[0].spans) {
      count += span.entry_count;
    }
    return count;
  };
  EXPECT_EQ(row_count(), kClusters);
  CorruptEverything();
  EXPECT_EQ(row_count(), 0);
  EXPECT_EQ(Stats().lost_part_count, 1);
  put.rows.resize(20);
  session_->Send(put);
  EXPECT_EQ(row_count(), 20);
  EXPECT_EQ(record_count(), 20);
  ASSERT_EQ(TakeCheckpoint(kClusters, kClusters).ToString(), "OK");  // reads the damaged run
  EXPECT_EQ(row_count(), 20);
  Open();
  EXPECT_EQ(row_count(), 20);
}

// A fork's rows are newer than those of the segment that it stands on.
TEST_F(EngineFaultTest, BehindADamagedIndexRunNoOlderRowShows) {
  Create();
  constexpr std::int64_t kClusters = 90;
  PutIndexRows put;
  for (std::int64_t id = 1; id <= kClusters; ++id) {
    AppendTokens(id, Positions::Range(id - 1, 1));
    put.rows.push_back({{0, ClusterId(id)}, std::string(40, 'o'), false, 1});
  }
  session_->Send(put);
  Checkpoint seal;
  seal.token_count = kClusters;
  seal.token_ids.assign(kClusters, 1);
  seal.next_cluster_ids.assign(2, 100);
  seal.seal = true;
  ASSERT_TRUE(session_->WaitFor(session_->Send(std::move(seal))).ok());
  std::vector<std::int64_t> free_pages;
  for (std::int64_t page = 2; page < 64; ++page) {
    const auto bytes = disk_.PageBytes(page);
    if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) {
      free_pages.push_back(page);
    }
  }
  for (IndexRow& row : put.rows) row.row.assign(40, 'n');
  session_->Send(put);
  ASSERT_EQ(TakeCheckpoint(kClusters, kClusters).ToString(), "OK");
  const auto rows = [this] {
    const auto reply = session_->Read(GetIndex{0});
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? std::get<IndexReply>(*reply).rows : std::vector<IndexRow>();
  };
  const auto visible_outcome = [this] {
    const auto reply = session_->Read(FetchIndex{.layer = 0, .only_visible = true});
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? std::get<FetchReply>(*reply).clusters.at(0).outcome
                      : FetchOutcome::kUnknown;
  };
  EXPECT_EQ(rows().front().row, std::string(40, 'n'));
  for (const std::int64_t page : free_pages) disk_.CorruptPage(page);
  EXPECT_EQ(visible_outcome(), FetchOutcome::kLost);
  EXPECT_TRUE(rows().empty());
  put.rows.resize(80);
  session_->Send(put);
  ASSERT_EQ(TakeCheckpoint(kClusters, kClusters).ToString(), "OK");
  EXPECT_EQ(rows().size(), 80U);
  Open();
  EXPECT_EQ(rows().size(), 80U);
}

TEST_F(EngineFaultTest, DamagedPartIsReportedLostAndCanBeRepaired) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  CorruptEverything();
  const auto fetched = FetchCluster(1);
  ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
  EXPECT_EQ(fetched->outcome, FetchOutcome::kLost);
  EXPECT_TRUE(fetched->spans.empty());
  EXPECT_GT(Stats().lost_part_count, 0);
  Replace repair;
  repair.parent_ids = {ClusterId(1)};
  repair.children = {{ClusterId(101), Positions::Range(0, 40)}};
  repair.brought_positions = Positions::Range(0, 40);
  repair.brought_entries = EntriesBytes(layout_, kFaultSalt, 0, 0, Positions::Range(0, 40));
  session_->Send(std::move(repair));
  ExpectWhole(101, Positions::Range(0, 40));
  EXPECT_TRUE(session_->failure().ok()) << session_->failure().ToString();
}

TEST_F(EngineFaultTest, DefragmentationLeavesDamagedClustersWhereTheyAre) {
  SealOneForDefragmentation();
  CorruptEverything();
  defragment_ = true;
  Start();
  while (Stats().read_defragment_bytes == 0) {
  }
  for (int round = 0; round < 50; ++round) Stats();
  EXPECT_EQ(Stats().write_defragment_bytes, 0);
  Open();
  EXPECT_EQ(FetchCluster(1)->outcome, FetchOutcome::kLost);
}

TEST_F(EngineFaultTest, DefragmentationThatCannotReadChangesNothing) {
  SealOneForDefragmentation();
  const std::int64_t used = Stats().flash_used_bytes;
  defragment_ = true;
  disk_.FailNextReads(2);  // it is tried again
  Start();
  while (Stats().read_defragment_bytes == 0) {
  }
  for (int round = 0; round < 50; ++round) Stats();
  EXPECT_EQ(Stats().write_defragment_bytes, 0);
  EXPECT_EQ(Stats().flash_used_bytes, used);
  Open();
  ExpectWhole(1, Positions::Range(0, 40));
}

TEST_F(EngineFaultTest, DefragmentationThatCannotWriteGivesItsPagesBack) {
  SealOneForDefragmentation();
  const std::int64_t used = Stats().flash_used_bytes;
  defragment_ = true;
  disk_.FailNextWrites(1);
  Start();
  while (Stats().write_defragment_bytes == 0) {
  }
  while (Stats().flash_used_bytes != used) {
  }
  Open();
  ExpectWhole(1, Positions::Range(0, 40));
}

TEST_F(EngineFaultTest, ReplaceOfADamagedParentAsksForItsBytes) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  CorruptEverything();
  Replace split;
  split.parent_ids = {ClusterId(1)};
  split.children = {{ClusterId(101), Positions::Range(0, 20)},
                    {ClusterId(102), Positions::Range(20, 20)}};
  const OpSeq op_seq = session_->Send(split);
  EXPECT_FALSE(FetchCluster(101)->outcome == FetchOutcome::kFound);
  EXPECT_EQ(session_->failure().code(), absl::StatusCode::kDataLoss);
  split.brought_positions = Positions::Range(0, 40);
  split.brought_entries = EntriesBytes(layout_, kFaultSalt, 0, 0, Positions::Range(0, 40));
  session_->SendAs(op_seq, split);
  ExpectWhole(102, Positions::Range(20, 20));
}

// What the disk does not give now it may give later: nothing is known to be lost.
TEST_F(EngineFaultTest, AReadErrorThatPassesCostsNothingAndOneThatStaysIsNoLoss) {
  for (const std::int64_t arena_bytes : {std::int64_t{0}, kArenaBytesMin}) {
    Start(/*place_at_idle=*/false, arena_bytes);
    Create();
    AppendTokens(1, Positions::Range(0, 40));
    ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
    Open();
    disk_.FailNextReads(1);
    ExpectWhole(1, Positions::Range(0, 40));
    EXPECT_EQ(Stats().unreadable_part_count, 0);
    Open();
    disk_.FailNextReads(2);
    const auto fetched = FetchCluster(1);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(fetched->outcome, FetchOutcome::kUnreadable);
    EXPECT_TRUE(fetched->spans.empty());
    EXPECT_EQ(Stats().unreadable_part_count, 1);
    EXPECT_EQ(Stats().lost_part_count, 0);
    ExpectWhole(1, Positions::Range(0, 40));
  }
}

// Bytes may come wrong from a disk that has them right.
TEST_F(EngineFaultTest, APartThatFailsItsCheckOnceIsReadAgain) {
  for (const std::int64_t arena_bytes : {std::int64_t{0}, kArenaBytesMin}) {
    Start(/*place_at_idle=*/false, arena_bytes);
    Create();
    AppendTokens(1, Positions::Range(0, 40));
    ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
    Open();
    disk_.FlipNextReads(1);
    ExpectWhole(1, Positions::Range(0, 40));
    EXPECT_EQ(Stats().lost_part_count, 0);
    Open();
    disk_.FailNextReads(1);
    disk_.FlipNextReads(1);
    ExpectWhole(1, Positions::Range(0, 40));
    Open();
    disk_.FlipNextReads(2);
    EXPECT_EQ(FetchCluster(1)->outcome, FetchOutcome::kLost);
    EXPECT_EQ(Stats().lost_part_count, 1);
    ExpectWhole(1, Positions::Range(0, 40));
  }
}

TEST_F(EngineFaultTest, CarriedEntriesAreReadAgainToo) {
  Create();
  session_->Send(StageCarried{0,
                              {{0, kWindowBuffer, Positions::Range(0, 5), Positions::Range(0, 5),
                                EntriesBytes(layout_, kFaultSalt, 0, 0, Positions::Range(0, 5))}}});
  ASSERT_EQ(TakeCheckpoint(0, 5).ToString(), "OK");
  disk_.FlipNextReads(1);
  EXPECT_TRUE(session_->Read(GetCarried{0}).ok());
  disk_.FailNextReads(1);
  EXPECT_TRUE(session_->Read(GetCarried{0}).ok());
  EXPECT_EQ(Stats().lost_part_count, 0);
  disk_.FailNextReads(2);
  const absl::Status status = session_->Read(GetCarried{0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(session_->Read(GetCarried{0}).ok());
}

TEST_F(EngineFaultTest, AReplaceWhoseParentComesWrongOnceIsDone) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  Replace split;
  split.parent_ids = {ClusterId(1)};
  split.children = {{ClusterId(101), Positions::Range(0, 20)},
                    {ClusterId(102), Positions::Range(20, 20)}};
  disk_.FailNextReads(2);
  const OpSeq op_seq = session_->Send(split);
  EXPECT_FALSE(FetchCluster(101).ok() && FetchCluster(101)->outcome == FetchOutcome::kFound);
  EXPECT_EQ(session_->failure().code(), absl::StatusCode::kUnavailable) << session_->failure();
  session_->ForgetFailures();
  disk_.FlipNextReads(1);
  session_->SendAs(op_seq, split);
  ExpectWhole(101, Positions::Range(0, 20));
  ExpectWhole(102, Positions::Range(20, 20));
  EXPECT_TRUE(session_->failure().ok()) << session_->failure();
}

// Rows that were left out would look as if nobody had put them.
TEST_F(EngineFaultTest, AnIndexThatCannotBeReadIsNoEmptyIndex) {
  Create();
  constexpr std::int64_t kClusters = 90;  // enough for a run
  PutIndexRows put;
  for (std::int64_t id = 1; id <= kClusters; ++id) {
    AppendTokens(id, Positions::Range(id - 1, 1));
    put.rows.push_back({{0, ClusterId(id)}, std::string(40, 'r'), false, 1});
  }
  session_->Send(put);
  ASSERT_EQ(TakeCheckpoint(0, kClusters).ToString(), "OK");
  for (const ReadOperation& read : {ReadOperation(GetIndex{0}), ReadOperation(FetchIndex{0})}) {
    Open();
    disk_.FailNextReads(2);
    const absl::Status status = session_->Read(read).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(session_->Read(read).ok());
    Open();
    disk_.FlipNextReads(1);
    EXPECT_TRUE(session_->Read(read).ok());
  }
  EXPECT_EQ(Stats().lost_part_count, 0);
  EXPECT_EQ(std::ssize(std::get<IndexReply>(*session_->Read(GetIndex{0})).rows), kClusters);
}

TEST_F(EngineFaultTest, MisdirectedAndLostWritesAreFound) {
  for (const bool misdirect : {false, true}) {
    Create();
    misdirect ? disk_.MisdirectNextWrites(1) : disk_.LoseNextWrites(1);
    AppendTokens(1, Positions::Range(0, 40));
    ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
    Open();
    EXPECT_EQ(FetchCluster(1)->outcome, FetchOutcome::kLost);
  }
}

TEST_F(EngineFaultTest, FailedWriteEndsTheAttachmentAtItsLastCheckpoint) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  AppendTokens(1, Positions::Range(40, 10));
  disk_.FailNextWrites(1);
  EXPECT_FALSE(TakeCheckpoint(40, 50).ok());
  Open();
  EXPECT_EQ(session_->attachment().token_count, 40);
  ExpectWhole(1, Positions::Range(0, 40));
}

TEST_F(EngineFaultTest, FailedFlushCommitsNothing) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  AppendTokens(1, Positions::Range(40, 10));
  disk_.FailNextFlushes(1);
  EXPECT_FALSE(TakeCheckpoint(40, 50).ok());
  Start();
  Open();
  EXPECT_EQ(session_->attachment().token_count, 40);
}

TEST_F(EngineFaultTest, WhatIsNotCheckpointedIsGoneAfterAPowerCutAndTheRestIsWhole) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  AppendTokens(1, Positions::Range(40, 400));  // fills a pool: it is being written
  disk_.PowerCut();
  Start();
  Open();
  ExpectWhole(1, Positions::Range(0, 40));
}

// Rule 6: a page that could not be read is not written again: the other part's bytes would go.
TEST_F(EngineFaultTest, APageOfTwoPartsThatCannotBeReadIsLeftAlone) {
  MakeTwoClustersInOnePage();
  const std::int64_t before = Stats().write_pool_bytes;
  disk_.FailNextReads(2);  // it is tried again
  AppendTokens(1, Positions::Range(4, 1));
  WaitForPoolWrite(before);
  Positions first = Positions::Range(0, 2);
  first.Append(4);
  ExpectWhole(1, first);
  ExpectWhole(2, Positions::Range(2, 2));
  EXPECT_EQ(FetchCluster(1)->spans.size(), 2U);
}

// Bytes that come wrong from the disk are not written again: they would be wrong for ever.
TEST_F(EngineFaultTest, APageWhereTheOtherPartIsDamagedIsLeftAlone) {
  MakeTwoClustersInOnePage();
  DamageOneAndAppendToTheFirst(/*damaged=*/2);
  Positions first = Positions::Range(0, 2);
  first.Append(4);
  ExpectWhole(1, first);
}

TEST_F(EngineFaultTest, APageWhereTheGrowingPartIsDamagedIsLeftAlone) {
  MakeTwoClustersInOnePage();
  DamageOneAndAppendToTheFirst(/*damaged=*/1);
  ExpectWhole(2, Positions::Range(2, 2));
}

TEST_F(EngineFaultTest, ShortTransfersAreContinued) {
  Create();
  disk_.ShortenNext(1);
  AppendTokens(1, Positions::Range(0, 400));
  ASSERT_EQ(TakeCheckpoint(0, 400).ToString(), "OK");
  disk_.ShortenNext(1);
  Open();
  ExpectWhole(1, Positions::Range(0, 400));
}

// What cannot be placed because its record is damaged must not keep the others from being logged.
TEST_F(EngineFaultTest, ADamagedRecordDoesNotHoldUpAFullTable) {
  place_entries_min_ = 4;
  pending_bytes_max_ = kPartBytesMax;
  Start(/*place_at_idle=*/false, /*arena_bytes_max=*/0);
  Create();
  AppendTokens(1, Positions::Range(0, 2));
  ASSERT_EQ(TakeCheckpoint(0, 2).ToString(), "OK");
  CorruptEverything();
  AppendTokens(1, Positions::Range(2, 3));  // enough to be placed with the damaged ones
  const std::int64_t count = kPartBytesMax / layout_.EntryBytes(0) + 2;
  for (std::int64_t i = 0; i < count; ++i) AppendTokens(2 + i, Positions::Range(5 + i, 1));
  for (std::int64_t i = 0; i < count; ++i) ExpectWhole(2 + i, Positions::Range(5 + i, 1));
  EXPECT_EQ(FetchCluster(1)->outcome, FetchOutcome::kLost);
}

}  // namespace
}  // namespace cairn::kv
