// An engine over files for its rows and a disk that fails on demand for its pages.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/tools/faulty_device.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {

inline constexpr std::int64_t kFaultSalt = 3;

class EngineFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(InitLogging("engine_fault_test", "error").ok());
    directory_ = ::testing::TempDir() + "/cairn-fault-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    Start();
  }
  void TearDown() override {
    session_.reset();
    engine_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Start(bool place_at_idle = false,
             std::int64_t arena_bytes_max = EngineOptions().arena_bytes_max) {
    session_.reset();
    engine_.reset();
    MetaOptions meta;
    meta.path = directory_ + "/meta";
    meta.wrap_file_system = wrap_;
    meta.recover_each = std::chrono::milliseconds(0);
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EngineOptions options;
    options.place_at_idle = place_at_idle;
    options.place_entries_min = place_entries_min_;
    options.pending_bytes_max = pending_bytes_max_;
    options.arena_bytes_max = arena_bytes_max;
    options.defragment = defragment_;
    options.defragment_idle = std::chrono::milliseconds(0);
    auto engine = Engine::Open(options, StoreId{}, disk_.Open(), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  void Create() {
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    id_ = id->id;
    Open();
  }

  void Open() {
    session_.reset();
    auto session = TestSession::Open(*engine_, id_);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = *std::move(session);
  }

  void AppendTokens(std::int64_t cluster, const Positions& positions) {
    Append op;
    op.clusters.push_back(
        {{0, ClusterId(cluster)}, positions, EntriesBytes(layout_, kFaultSalt, 0, 0, positions)});
    session_->Send(std::move(op));
  }

  absl::Status TakeCheckpoint(std::int64_t start, std::int64_t count) {
    Checkpoint op;
    op.token_count = count;
    op.token_ids_start = start;
    op.token_ids.assign(static_cast<std::size_t>(count - start), 1);
    op.next_cluster_ids.assign(2, 100);
    return session_->WaitFor(session_->Send(std::move(op))).status();
  }

  absl::StatusOr<FetchedCluster> FetchCluster(std::int64_t cluster) {
    CAIRN_ASSIGN_OR_RETURN(const ReadReply reply,
                           session_->Read(Fetch{0, {{0, ClusterId(cluster)}}, true}));
    return std::get<FetchReply>(reply).clusters.at(0);
  }

  void ExpectWhole(std::int64_t cluster, const Positions& positions) {
    const auto fetched = FetchCluster(cluster);
    ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
    ASSERT_EQ(fetched->outcome, FetchOutcome::kFound);
    const JoinedCluster joined = Join(layout_, *fetched);
    EXPECT_EQ(joined.positions, positions);
    EXPECT_TRUE(joined.entries == EntriesBytes(layout_, kFaultSalt, 0, 0, positions));
  }

  // A sealed segment with a cluster that lies in two places, and nobody attached.
  void SealOneForDefragmentation() {
    Create();
    AppendTokens(1, Positions::Range(0, 20));
    ASSERT_EQ(TakeCheckpoint(0, 20).ToString(), "OK");
    AppendTokens(1, Positions::Range(20, 20));
    ASSERT_EQ(TakeCheckpoint(20, 40).ToString(), "OK");
    const auto closed = Await<std::monostate>([&](auto done) {
      engine_->CloseSession(kDefaultApp, id_, session_->attachment().epoch, std::move(done));
    });
    ASSERT_TRUE(closed.ok()) << closed.status();
    session_.reset();
    const auto sealed = Await<SealedSegment>([&](auto done) {
      engine_->SealSession(kDefaultApp, {id_, ""}, std::move(done));
    });
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    sealed_ = sealed->segment_id;
  }

  // All pages that hold data.
  void CorruptEverything() {
    for (std::int64_t page = 2; page < 64; ++page) disk_.CorruptPage(page);
  }

  // Two clusters of two entries each in one page, as a checkpoint has them.
  void MakeTwoClustersInOnePage() {
    Start(/*place_at_idle=*/true, /*arena_bytes_max=*/0);  // every fetch reads the disk
    Create();
    for (std::int64_t cluster = 1; cluster <= 2; ++cluster) {
      AppendTokens(cluster, Positions::Range(2 * cluster - 2, 2));
      WaitUntilPlaced(cluster);
    }
    ASSERT_EQ(TakeCheckpoint(0, 4).ToString(), "OK");
    ASSERT_EQ(FetchCluster(1)->spans.at(0).direction, Direction::kUp);
    ASSERT_EQ(FetchCluster(2)->spans.at(0).direction, Direction::kDown);
    for (page_of_two_ = 2; disk_.PageBytes(page_of_two_)[0] == std::byte{0}; ++page_of_two_) {
      ASSERT_LT(page_of_two_, 64);
    }
  }

  // What is added to the first cluster goes elsewhere.
  void DamageOneAndAppendToTheFirst(std::int64_t damaged) {
    const std::vector<std::byte> page = disk_.PageBytes(page_of_two_);
    const auto only_it = [&] {
      return FetchCluster(damaged)->outcome == FetchOutcome::kLost &&
             FetchCluster(3 - damaged)->outcome == FetchOutcome::kFound;
    };
    for (int tries = 0; tries < 1000 && !only_it(); ++tries) disk_.CorruptPage(page_of_two_);
    ASSERT_TRUE(only_it());
    const std::int64_t before = Stats().write_pool_bytes;
    AppendTokens(1, Positions::Range(4, 1));
    WaitForPoolWrite(before);
    EXPECT_EQ(disk_.PageBytes(page_of_two_), page);
    EXPECT_TRUE(only_it());
  }

  // Until the engine has written more to pools than `before`.
  void WaitForPoolWrite(std::int64_t before) {
    while (Stats().write_pool_bytes == before) {
    }
  }

  // Asks until the cluster has no pending entries.
  void WaitUntilPlaced(std::int64_t cluster) {
    for (bool placed = false; !placed && !HasFailure();) {
      const auto fetched = FetchCluster(cluster);
      ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
      placed = std::all_of(fetched->spans.begin(), fetched->spans.end(),
                           [](const Span& span) { return span.part_id.value() != 0; });
    }
  }

  KvStats Stats() {
    const auto stats =
        Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
    return stats.value_or(KvStats());
  }

  const EntryLayout layout_{1, 1, 40, KvFormat::kF16};  // 160 bytes
  FaultyDisk disk_{{.size_bytes = std::int64_t{8} << 20, .seed = 5, .delay_polls_max = 2}};
  std::int32_t place_entries_min_ = 1;
  std::int64_t pending_bytes_max_ = EngineOptions().pending_bytes_max;
  std::string directory_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TestSession> session_;
  SegmentId sealed_;
  SessionId id_;
  std::int64_t page_of_two_ = 0;
  decltype(MetaOptions::wrap_file_system) wrap_;  // of the metadata
  bool defragment_ = false;
};

}  // namespace cairn::kv
