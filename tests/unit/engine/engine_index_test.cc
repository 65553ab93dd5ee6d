// Index rows packed into runs: what GetIndex shows, what is written, what damage costs.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/kv/index_record.h"
#include "kv-node/device/memory_device.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

class EngineIndexTest : public EngineTest {
 protected:
  static constexpr std::int64_t kClusters = 100;

  void SetUp() override {
    EngineTest::SetUp();
    StartWith({});
  }
  void StartWith(EngineOptions options) {
    session_.reset();
    options.place_at_idle = false;
    options.index_changed_min = 4;
    Start(options);
    id_ = Create();
    session_ = Open(id_);
    next_cluster_id_ = 1000;
  }
  // Clusters 1 .. kClusters with two entries each, and a row for each in layer 0, head 0.
  void Fill() {
    for (std::int64_t id = 1; id <= kClusters; ++id) {
      AppendAll(*session_, id, Positions::Range(2 * (id - 1), 2));
      if (id % 20 == 0) PutRows(*session_, id - 19, id, "first");
    }
    TakeCheckpointAt(*session_, 0);
  }
  void PutRows(TestSession& session, std::int64_t first, std::int64_t last,
               const std::string& text) {
    PutIndexRows put;
    for (std::int64_t id = first; id <= last; ++id) {
      put.rows.push_back({{0, ClusterId(id)}, Row(id, text), id % 2 == 0, 2});
      rows_[id] = Row(id, text);
    }
    session.Send(put);
  }
  static std::string Row(std::int64_t id, const std::string& text) {
    std::string row = text + std::to_string(id);
    row.resize(64, '.');
    return row;
  }
  // Clusters 1 .. count with one entry each and rows of that many bytes.
  void FillWithRowsOf(std::int64_t count,
                      const std::function<std::int64_t(std::int64_t id)>& bytes_of) {
    PutIndexRows put;
    for (std::int64_t id = 1; id <= count; ++id) {
      AppendAll(*session_, id, Positions::Range(id - 1, 1));
      rows_[id] = std::string(static_cast<std::size_t>(bytes_of(id)), 'r');
      put.rows.push_back({{0, ClusterId(id)}, rows_[id], id % 2 == 0, 2});
    }
    session_->Send(put);
    const auto done = TakeCheckpoint(*session_, 0, count);
    ASSERT_TRUE(done.ok()) << done.status();
  }
  void TakeCheckpointAt(TestSession& session, std::int64_t start) {
    const auto done = TakeCheckpoint(session, start, 2 * kClusters);
    ASSERT_TRUE(done.ok()) << done.status();
  }
  std::map<std::int64_t, std::string> Shown(TestSession& session) {
    const auto reply = session.Read(GetIndex{0});
    EXPECT_TRUE(reply.ok()) << reply.status();
    std::map<std::int64_t, std::string> shown;
    if (!reply.ok()) return shown;
    const auto& index = std::get<IndexReply>(*reply);
    read_bytes_ = index.read_bytes;
    for (const IndexRow& row : index.rows) {
      EXPECT_EQ(row.stale, row.cluster.cluster_id.value() % 2 == 0);
      EXPECT_EQ(row.entry_count, 2);
      shown[row.cluster.cluster_id.value()] = row.row;
    }
    return shown;
  }
  // What FetchIndex shows of the clusters that there are: of two records the later.
  void ExpectSameRecords(TestSession& session) {
    const auto reply = session.Read(FetchIndex{0});
    ASSERT_TRUE(reply.ok()) << reply.status();
    const std::vector<FetchedCluster>& clusters = std::get<FetchReply>(*reply).clusters;
    ASSERT_EQ(clusters.size(), 1U);
    EXPECT_EQ(clusters[0].outcome, FetchOutcome::kFound);
    std::map<std::int64_t, std::string> shown;
    for (const Span& span : clusters[0].spans) {
      ASSERT_GT(span.entry_count, 0);
      std::int64_t last_id = 0;
      IndexRecords{span.bytes, span.entry_count}.ForEachOfHead(0, [&](const IndexRecord& record) {
        const std::int64_t id = record.cluster.cluster_id.value();
        EXPECT_LT(last_id, id);
        EXPECT_EQ(record.stale, id % 2 == 0);
        EXPECT_EQ(record.entry_count, 2);
        last_id = id;
        shown[id] = record.row;
      });
    }
    std::erase_if(shown, [&](const auto& row) { return !rows_.contains(row.first); });
    EXPECT_EQ(shown, rows_);
    EXPECT_EQ(Visible(session), rows_);
  }
  // The same for who does not know the clusters.
  static std::map<std::int64_t, std::string> Visible(TestSession& session) {
    const auto reply = session.Read(FetchIndex{.layer = 0, .only_visible = true});
    EXPECT_TRUE(reply.ok()) << reply.status();
    std::map<std::int64_t, std::string> visible;
    if (!reply.ok()) return visible;
    std::vector<IndexRecords> runs;
    const FetchedCluster& all = std::get<FetchReply>(*reply).clusters.at(0);
    EXPECT_EQ(all.outcome, FetchOutcome::kFound);
    for (const Span& span : all.spans) runs.push_back({span.bytes, span.entry_count});
    std::vector<IndexRecord> records;
    FindVisibleRecords(runs, records);
    for (const IndexRecord& record : records) {
      visible[record.cluster.cluster_id.value()] = record.row;
    }
    return visible;
  }
  void Reopen() {
    session_.reset();
    session_ = Open(id_);
  }
  void Replace1By(std::int64_t child) {
    session_->Send(
        Replace{0, 0, {ClusterId(1)}, {{ClusterId(child), Positions::Range(0, 2)}}, {}, {}, {}});
    rows_.erase(1);
  }

  SessionId id_;
  std::unique_ptr<TestSession> session_;
  std::map<std::int64_t, std::string> rows_;  // expected
  std::int64_t read_bytes_ = 0;               // as the last answer to GetIndex says
};

TEST_F(EngineIndexTest, RowsArePackedAndLeaveMemoryAndMetadata) {
  Fill();
  const KvStats packed = Stats();
  // 100 records of 80 bytes.
  EXPECT_EQ(packed.write_index_bytes, 2 * kPageBytes);
  EXPECT_EQ(packed.index_row_bytes, 0);
  EXPECT_EQ(Shown(*session_), rows_);
  // They are not in memory.
  EXPECT_EQ(read_bytes_, 2 * kPageBytes);
  EXPECT_EQ(Stats().read_index_bytes, packed.read_index_bytes + 2 * kPageBytes);
  EXPECT_EQ(Stats().read_fetch_bytes, packed.read_fetch_bytes);
  EXPECT_EQ(Stats().read_meta_bytes, packed.read_meta_bytes);
  Reopen();
  EXPECT_GT(Stats().read_meta_bytes, packed.read_meta_bytes);
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, WhatChangesLittleStaysBesideTheRun) {
  Fill();
  const KvStats packed = Stats();
  PutRows(*session_, 10, 59, "second");  // half
  TakeCheckpointAt(*session_, 2 * kClusters);
  EXPECT_EQ(Stats().write_index_bytes, packed.write_index_bytes);
  EXPECT_GT(Stats().index_row_bytes, 50 * 64);
  EXPECT_EQ(Shown(*session_), rows_);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);

  PutRows(*session_, 60, 60, "third");
  const std::int64_t used = Stats().flash_used_bytes;
  TakeCheckpointAt(*session_, 2 * kClusters);
  EXPECT_EQ(Stats().write_index_bytes, 2 * packed.write_index_bytes);
  EXPECT_EQ(Shown(*session_), rows_);
  EXPECT_EQ(Stats().flash_used_bytes, used);  // the old run is free
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, RecordsComeFromTheRunAndFromWhatChanged) {
  Fill();
  const KvStats before = Stats();
  ExpectSameRecords(*session_);
  EXPECT_GE(Stats().read_index_bytes, before.read_index_bytes + 2 * kPageBytes);
  EXPECT_EQ(Stats().read_fetch_bytes, before.read_fetch_bytes);
  EXPECT_EQ(Stats().cache_hit_count, before.cache_hit_count);
  EXPECT_EQ(Stats().cache_miss_count, before.cache_miss_count);
  PutRows(*session_, 10, 59, "second");
  ExpectSameRecords(*session_);
  TakeCheckpointAt(*session_, 2 * kClusters);
  ExpectSameRecords(*session_);
  Replace1By(500);
  ExpectSameRecords(*session_);
  PutRows(*session_, 30, 99, "third");  // packed anew
  TakeCheckpointAt(*session_, 2 * kClusters);
  ExpectSameRecords(*session_);
  Reopen();
  ExpectSameRecords(*session_);
  const auto none = session_->Read(FetchIndex{1});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(std::get<FetchReply>(*none).clusters.at(0).spans.empty());
  EXPECT_FALSE(session_->Read(FetchIndex{99}).ok());
}

TEST_F(EngineIndexTest, WhatTakesTooMuchMemoryIsPackedEarlier) {
  EngineOptions options;
  options.index_changed_bytes_max = 2000;
  StartWith(options);
  Fill();
  const KvStats packed = Stats();
  PutRows(*session_, 10, 10, "second");
  TakeCheckpointAt(*session_, 2 * kClusters);
  EXPECT_EQ(Stats().write_index_bytes, packed.write_index_bytes);
  PutRows(*session_, 11, 49, "third");
  TakeCheckpointAt(*session_, 2 * kClusters);
  EXPECT_EQ(Stats().write_index_bytes, 2 * packed.write_index_bytes);
  EXPECT_EQ(Shown(*session_), rows_);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, WhatNoCheckpointCoversIsGone) {
  Fill();
  const auto before = rows_;
  PutRows(*session_, 1, kClusters, "lost");
  EXPECT_EQ(Shown(*session_), rows_);
  Reopen();
  EXPECT_EQ(Shown(*session_), before);
}

TEST_F(EngineIndexTest, ReplacedClustersHaveNoRow) {
  Fill();
  Replace1By(500);
  EXPECT_EQ(Shown(*session_), rows_);
  EXPECT_EQ(Visible(*session_), rows_);
  TakeCheckpointAt(*session_, 2 * kClusters);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
  EXPECT_EQ(Visible(*session_), rows_);
  PutRows(*session_, 30, 60, "second");  // the run is written anew, without the record
  TakeCheckpointAt(*session_, 2 * kClusters);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, RunsOfSealedSegmentsShowThroughForks) {
  Fill();
  PutRows(*session_, 3, 5, "second");
  const auto sealed = TakeCheckpoint(*session_, 2 * kClusters, 2 * kClusters);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  AppendAll(*session_, 600, Positions::Range(2 * kClusters, 2));
  const auto seal = TakeCheckpoint(*session_, 2 * kClusters, 2 * kClusters + 2, /*seal=*/true);
  ASSERT_TRUE(seal.ok()) << seal.status();
  const auto parents = rows_;
  const SessionId fork_id = Create(seal->sealed_segment_id, 2 * kClusters);
  auto fork = Open(fork_id);
  EXPECT_EQ(Shown(*fork), rows_);
  PutRows(*fork, 50, 90, "fork");  // a run of its own
  fork->Send(
      Replace{0, 0, {ClusterId(2)}, {{ClusterId(1001), Positions::Range(2, 2)}}, {}, {}, {}});
  next_cluster_id_ = 1002;
  rows_.erase(2);
  const auto done = TakeCheckpoint(*fork, 2 * kClusters, 2 * kClusters);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(Shown(*fork), rows_);
  fork.reset();
  fork = Open(fork_id);
  EXPECT_EQ(Shown(*fork), rows_);
  ExpectSameRecords(*fork);
  EXPECT_EQ(Shown(*session_), parents);
  EXPECT_EQ(Visible(*session_), parents);
}

TEST_F(EngineIndexTest, ARunOfSeveralPartsIsReadWhole) {
  constexpr std::int64_t kCount = 400;
  FillWithRowsOf(kCount, [](std::int64_t id) { return 290 + id % 20; });
  // Records of 16 + 309 bytes, 201 of which fit into a part: the second begins within a page.
  EXPECT_EQ(Stats().write_index_bytes, (kCount * 325 + kPageBytes - 1) / kPageBytes * kPageBytes);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
  ExpectSameRecords(*session_);
}

TEST_F(EngineIndexTest, RowsOfVeryDifferentSizesStayUnpacked) {
  constexpr std::int64_t kCount = 400;
  FillWithRowsOf(kCount, [](std::int64_t id) { return id == 7 ? kIndexRowBytesMax : 8; });
  EXPECT_EQ(Stats().write_index_bytes, 0);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
  ExpectSameRecords(*session_);
  session_->Send(PutIndexRows{0, {{{0, ClusterId(7)}, "short", false, 2}}});
  rows_[7] = "short";
  ASSERT_TRUE(TakeCheckpoint(*session_, kCount, kCount).ok());
  EXPECT_GT(Stats().write_index_bytes, 0);
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, TheLastPagesAreForEntries) {
  EngineOptions options;
  options.place_at_idle = false;
  options.index_changed_min = 4;
  session_.reset();
  Start(options, 22 * kPageBytes);
  id_ = Create();
  session_ = Open(id_);
  // 15 pages of entries, 11 of rows: 20 are free.
  FillWithRowsOf(91, [](std::int64_t) { return 460; });
  EXPECT_EQ(Stats().write_index_bytes, 0);
  Reopen();
  EXPECT_EQ(Shown(*session_), rows_);
}

TEST_F(EngineIndexTest, SpaceComesBackWithTheSession) {
  const std::int64_t empty = Stats().flash_used_bytes;
  Fill();
  PutRows(*session_, 1, kClusters, "second");
  TakeCheckpointAt(*session_, 2 * kClusters);
  session_.reset();
  ASSERT_TRUE(Delete(id_).ok());
  EXPECT_EQ(Stats().flash_used_bytes, empty);
}

}  // namespace
}  // namespace cairn::kv
