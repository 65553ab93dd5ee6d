// cairn-kv-util repair: what is left of a store that is damaged in one way.
#include "kv-node/meta/sequence_check.h"
#include "tests/tools/unreadable_pages.h"
#include "tests/unit/util/damages.h"

namespace cairn::kv {
namespace {

class RepairedDamage : public DamagedStoreTest,
                       public testing::WithParamInterface<DamagedStoreTest::Damage> {
 protected:
  // Opens what is left in an engine, reads all of it, and goes on with it.
  void ExpectLeft(const Left& left) {
    next_cluster_id_ = 12;
    ASSERT_NO_FATAL_FAILURE(OpenEngine());
    ExpectSession(talk_, left.talk_tokens);
    ExpectSession(fork_, left.fork_tokens);
    ExpectSession(alone_, left.alone_tokens);
    CloseEngine();
  }
  void ExpectSession(SessionId id, std::int64_t tokens) {
    if (tokens < 0) {
      const auto gone = TestSession::Open(*engine_, id);
      EXPECT_EQ(gone.status().code(), absl::StatusCode::kNotFound) << gone.status();
      return;
    }
    auto session = Open(id);
    ASSERT_NE(session, nullptr);
    EXPECT_EQ(session->attachment().token_count, tokens) << "session " << id.value();
    if (id == alone_) {
      ExpectCluster(*session, 1, Positions::Range(0, 30));
    } else if (tokens == kSealedTokens) {
      ExpectCluster(*session, 1, Positions::Range(0, 20));
      ExpectCluster(*session, 2, Positions::Range(20, 40));
    } else if (id == talk_) {
      ExpectCluster(*session, 1, JoinedRanges());
      ExpectCluster(*session, 11, Positions::Range(35, 20));
    } else {
      ExpectCluster(*session, 5, Positions::Range(kForkedTokens, 30));
    }
    GoOn(*session, tokens);
  }
  static Positions JoinedRanges() {
    Positions out = Positions::Range(0, 20);
    out.AppendAll(Positions::Range(60, 20));
    return out;
  }
  // A client goes on where the session is now. What was carried is assigned.
  void GoOn(TestSession& session, std::int64_t tokens) {
    const auto reply = session.Read(GetCarried{0});
    ASSERT_TRUE(reply.ok()) << reply.status();
    const auto& carried = std::get<CarriedReply>(*reply).carried;
    const std::int64_t first = carried.empty() ? tokens : carried.front().positions.first();
    AppendAll(session, next_cluster_id_, Positions::Range(first, tokens + 9 - first));
    const auto done = TakeCheckpoint(session, tokens, tokens + 9);
    EXPECT_TRUE(done.ok()) << done.status();
  }
};

TEST_P(RepairedDamage, LeavesWhatIsWholeAndTheEngineGoesOn) {
  EditRows([this](MetaReader& reader, MetaBatch& batch) { GetParam().edit(*this, reader, batch); });
  const auto before = Files();
  const std::vector<std::string> plan = Repair(RepairMode::kDryRun);
  EXPECT_GT(finding_count_, 0);
  EXPECT_TRUE(Has(plan, "dry_run=1")) << Joined(plan);
  ASSERT_EQ(Files(), before) << "a dry run changed the store";
  const std::vector<std::string> lines = Repair();
  EXPECT_EQ(finding_count_, 0) << Joined(lines);
  EXPECT_TRUE(Has(lines, "repair action=")) << Joined(lines);
  const std::vector<std::string> after = Verify();
  EXPECT_EQ(finding_count_, 0) << Joined(after);
  ASSERT_NO_FATAL_FAILURE(ExpectLeft(GetParam().left)) << Joined(lines);
  const std::vector<std::string> last = Verify();
  EXPECT_EQ(finding_count_, 0) << Joined(last);
}

INSTANTIATE_TEST_SUITE_P(, RepairedDamage, testing::ValuesIn(DamagedStoreTest::Damages()),
                         [](const auto& tested) { return tested.param.name; });

class RepairTest : public DamagedStoreTest {};

TEST_F(RepairTest, WholeStoreIsLeftByteForByte) {
  const auto before = Files();
  Repair();
  EXPECT_EQ(finding_count_, 0);
  EXPECT_EQ(Files(), before);
}

TEST_F(RepairTest, SaysWhatIsLost) {
  EditRows([this](MetaReader& reader, MetaBatch& batch) {
    batch.Delete(Family::kClusters, SealedParts(*this, reader));
  });
  const std::vector<std::string> lines = Repair();
  EXPECT_TRUE(Has(lines, fmt::format("repair action=session_dropped session={} lost_tokens={}",
                                     talk_, kSealedTokens)))
      << Joined(lines);
  EXPECT_TRUE(Has(lines, fmt::format("repair action=session_cut session={} tokens={} "
                                     "lost_tokens={} parent={}",
                                     talk_, kSealedTokens, kTokens - kSealedTokens, sealed_)))
      << Joined(lines);
}

// Rows of the sealed segment do not take the lost ones' place: the clusters may have changed since.
TEST_F(RepairTest, DropsADamagedIndexRunAndKeepsItsSegment) {
  std::int64_t offset = 0;
  EditRows([&](MetaReader& reader, MetaBatch& batch) {
    const std::string run = *reader.Get(Family::kRuns, OpenIndexRun(*this, reader)).value();
    offset = DecodeIndexRun(run)->parts.front().first_page.value() * kPageBytes + 3;
    batch.Put(Family::kConfig, "note", "");  // an edit must change something
    batch.Delete(Family::kConfig, "note");
  });
  FlipByte(offset);
  const std::vector<std::string> lines = Verify();
  EXPECT_TRUE(Has(lines, "kind=index_run")) << Joined(lines);
  EXPECT_TRUE(Has(lines, fmt::format("page={} ", offset / kPageBytes))) << Joined(lines);
  EXPECT_TRUE(Has(Repair(), "action=index_run_dropped row=runs/"));
  Verify();
  EXPECT_EQ(finding_count_, 0);
  ASSERT_NO_FATAL_FAILURE(OpenEngine());
  {
    auto session = Open(talk_);
    EXPECT_EQ(session->attachment().token_count, kTokens);
    EXPECT_EQ(std::get<IndexReply>(*session->Read(GetIndex{1})).rows.size(), 0U);
    // Also for who does not know the clusters; those of the older segment are there, but hidden.
    const auto visible = session->Read(FetchIndex{.layer = 1, .only_visible = true});
    EXPECT_TRUE(std::get<FetchReply>(*visible).clusters.at(0).spans.empty());
    const auto all = session->Read(FetchIndex{1});
    EXPECT_FALSE(std::get<FetchReply>(*all).clusters.at(0).spans.empty());
    EXPECT_EQ(std::get<IndexReply>(*session->Read(GetIndex{0})).rows.size(), 1U);
    CarryAll(*session, Positions::Range(80, 10), Positions());
    session->Send(RowsOfLayer1(11, "again", 20));
    ASSERT_TRUE(TakeCheckpoint(*session, kTokens, kTokens).ok());  // packs them
    session.reset();
    session = Open(talk_);
    const auto rows = std::get<IndexReply>(*session->Read(GetIndex{1})).rows;
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(layout_.head_count));
    EXPECT_EQ(rows.front().row, "again");
  }
  CloseEngine();
  Verify();
  EXPECT_EQ(finding_count_, 0);
}

TEST_F(RepairTest, DamagedSuperblockCopyIsWrittenAgain) {
  FlipByte(kPageBytes + 30);
  const std::vector<std::string> lines = Repair();
  EXPECT_EQ(finding_count_, 0);
  EXPECT_TRUE(Has(lines, "action=superblock_rewritten")) << Joined(lines);
  Verify();
  EXPECT_EQ(finding_count_, 0);
}

TEST_F(RepairTest, StoreWithoutItsMetadataIsLeftAsItIs) {
  std::filesystem::remove_all(dir_.File(kMetaDirectoryName));
  const auto before = Files();
  Repair();
  EXPECT_EQ(finding_count_, 1);
  EXPECT_EQ(Files(), before);
}

TEST_F(RepairTest, UnreadableMetadataIsNotTakenForMissingRows) {
  int damaged = 0;
  for (const auto& [path, content] : Files()) {
    if (!path.ends_with(".sst")) continue;
    ++damaged;
    std::string wrong = content;
    wrong[content.size() / 20] ^= 0x10;  // in the first data block
    std::ofstream(path, std::ios::binary) << wrong;
    const auto before = Files();
    const std::vector<std::string> lines = Repair();
    EXPECT_GT(finding_count_, 0) << path << Joined(lines);
    EXPECT_TRUE(Has(lines, "kind=metadata")) << Joined(lines);
    EXPECT_FALSE(Has(lines, "repair action=")) << Joined(lines);
    EXPECT_EQ(Files(), before);
    std::ofstream(path, std::ios::binary) << content;
  }
  EXPECT_GT(damaged, 3);
  Verify();
  EXPECT_EQ(finding_count_, 0);
}

TEST_F(RepairTest, StoreInUseIsRefused) {
  const auto file = ExtentFile::Open({.directory = dir_.path(), .read_only = true});
  ASSERT_TRUE(file.ok());
  const auto count = RepairStore(Tool(), RepairMode::kRepair, [](const std::string&) {});
  EXPECT_EQ(count.status().code(), absl::StatusCode::kUnavailable) << count.status();
}

TEST_F(RepairTest, DamagedPageCostsTheSessionsThatShowItsSegmentNothingElse) {
  std::int64_t page = 0;
  EditRows([&](MetaReader& reader, MetaBatch& batch) {
    const SegmentId segment = OpenSegmentOf(reader, fork_);
    page = PartsIn(ClusterRows(reader, segment, ClusterRowKind::kParts).front())
               .front()
               .first_page.value();
    batch.Put(Family::kRuns, "123456789", "x");
  });
  FlipByte(page * kPageBytes);
  const std::vector<std::string> lines = Repair();
  EXPECT_EQ(finding_count_, 0) << Joined(lines);
  EXPECT_TRUE(
      Has(lines, fmt::format("action=session_cut session={} tokens={}", fork_, kForkedTokens)))
      << Joined(lines);
  EXPECT_FALSE(Has(lines, fmt::format("session={}", talk_))) << Joined(lines);
  EXPECT_FALSE(Has(lines, fmt::format("session={}", alone_))) << Joined(lines);
}

// What the disk does not give now it may give later: it is told, and nothing is given up for it.
TEST_F(RepairTest, APageThatCannotBeReadIsLeftUnlessItIsGivenUp) {
  std::int64_t page = 0;
  {
    const auto look = LookAtMetadata({.path = dir_.File(kMetaDirectoryName)});
    ASSERT_TRUE(look.ok()) << look.status();
    const SegmentId segment = OpenSegmentOf(*look->reader, fork_);
    page = PartsIn(ClusterRows(*look->reader, segment, ClusterRowKind::kParts).front())
               .front()
               .first_page.value();
  }
  const std::string path = std::filesystem::canonical(dir_.path()).string() + "/" + kExtentFileName;
  const auto before = Files();
  {
    // Once with its neighbours, once alone, and it comes at the third time.
    const test::UnreadablePages unreadable(path, page * kPageBytes, (page + 1) * kPageBytes, 2);
    Verify();
    EXPECT_EQ(finding_count_, 0);
  }
  {
    const test::UnreadablePages unreadable(path, page * kPageBytes, (page + 1) * kPageBytes);
    const std::vector<std::string> lines = Repair();
    EXPECT_GT(finding_count_, 0);
    EXPECT_TRUE(Has(lines, "kind=page_unreadable")) << Joined(lines);
    EXPECT_TRUE(Has(lines, "left pages_unreadable=")) << Joined(lines);
    EXPECT_FALSE(Has(lines, "repair action=")) << Joined(lines);
    EXPECT_EQ(Files(), before) << "a repair gave up what may be whole";
  }
  Verify();
  EXPECT_EQ(finding_count_, 0);
  const test::UnreadablePages unreadable(path, page * kPageBytes, (page + 1) * kPageBytes);
  std::vector<std::string> lines;
  ToolOptions drop = Tool();
  drop.drop_unreadable = true;
  const auto left = RepairStore(drop, RepairMode::kRepair,
                                [&](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(*left, 0) << Joined(lines);
  EXPECT_TRUE(Has(lines, fmt::format("action=session_cut session={}", fork_))) << Joined(lines);
}

}  // namespace
}  // namespace cairn::kv
