#include "tests/unit/engine/history_world.h"

#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "kv-node/engine/place/co_fetches.h"
#include "tests/unit/engine/history_runs.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kTokensMax = 900;
// In which sealed segments mostly begin to be packed, if there are any.
constexpr std::chrono::milliseconds kTimeToPack{150};

// Entries of 70 to 320 bytes.
EntryLayout LayoutOf(std::uint64_t seed) {
  EntryLayout layout = SmallLayout();
  layout.kv_format = kKvFormats[seed % kKvFormats.size()];
  return layout;
}

}  // namespace

HistoryWorld::HistoryWorld(std::uint64_t seed, const std::string& directory)
    : layout_(LayoutOf(seed)),
      random_(seed),
      operations_(layout_, [this](std::int64_t below) { return Random(below); }),
      directory_(directory),
      disk_({.size_bytes = kDiskBytes, .seed = seed, .delay_polls_max = 3}),
      page_count_(kDiskBytes / kPageBytes) {
  StartEngine();
}

HistoryWorld::~HistoryWorld() {
  chats_.clear();
  engine_.reset();
}

std::int64_t HistoryWorld::Random(std::int64_t below) {
  return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
}

absl::StatusOr<std::unique_ptr<MetaStore>> HistoryWorld::OpenMeta() {
  MetaOptions meta;
  meta.path = directory_ + "/meta";
  meta.wrap_file_system = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
    files_ = std::make_shared<UnsyncedFs>(base, random_());
    return files_;
  };
  return MetaStore::Open(meta);
}

void HistoryWorld::StartEngine() {
  if (Random(2) == 0) Resize();
  auto store = OpenMeta();
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EngineOptions options;
  options.place_entries_min = Random(2) == 0 ? 3 : 40;
  options.pending_bytes_max = 64 << 10;
  options.pooled_children_max = Random(2) == 0 ? 1 : 64;
  options.index_changed_min = Random(3) * 3;
  options.merge_gap_bytes = Random(3) * 2 * kPageBytes;
  if (Random(3) == 0) options.arena_bytes_max = 0;
  options.defragment = Random(4) != 0;
  options.defragment_idle = std::chrono::milliseconds(0);
  auto engine =
      Engine::Open(options, StoreId{}, disk_.Open(page_count_ * kPageBytes), *std::move(store));
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  engine_ = *std::move(engine);
}

// Half of the time in the middle of a checkpoint: in place of a sync of the metadata, where a batch
// may be there in part, in full or not at all. The others come between two syncs, when RocksDB has
// nothing to lose.
void HistoryWorld::CutPower() {
  if (!chats_.empty() && Random(2) == 0) {
    Chat& chat = chats_[static_cast<std::size_t>(Random(static_cast<std::int64_t>(chats_.size())))];
    TakeCheckpoint(chat, Power::kFails);
  }
  // What the metadata says by now is about pages that a flush has made durable: so it does not
  // matter that these are two moments.
  disk_.PowerCut();
  files_->PowerCut();
  counts_["metadata torn"] += files_->lost_bytes() > 0 ? 1 : 0;
}

void HistoryWorld::CountWork() {
  const auto stats =
      Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
  if (!stats.ok()) return;
  counts_["spill"] += static_cast<int>(stats->spill_count);
  counts_["index page"] += static_cast<int>(stats->write_index_bytes / kPageBytes);
  counts_["page packed"] += static_cast<int>(stats->write_defragment_bytes / kPageBytes);
}

// Everybody leaves: sealed segments are placed again, until somebody comes back or the power goes,
// at any moment of that.
void HistoryWorld::Rest() {
  for (Chat& chat : chats_) {
    if (chat.session == nullptr) continue;
    chat.epoch = chat.session->attachment().epoch;
    chat.session.reset();
  }
  const auto packed_bytes = [this] {
    const auto stats =
        Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
    return stats.ok() ? stats->write_defragment_bytes : 0;
  };
  // Mostly in the middle of it, sometimes before it has begun or behind its end.
  if (Random(4) != 0) {
    const std::int64_t before = packed_bytes();
    const auto end = std::chrono::steady_clock::now() + kTimeToPack;
    while (packed_bytes() == before && std::chrono::steady_clock::now() < end) {
    }
  }
  for (std::int64_t rounds = Random(Random(4) == 0 ? 4000 : 300); rounds > 0; --rounds) {
    packed_bytes();
  }
  CountWork();
  const bool power_cut = Random(3) == 0;
  if (power_cut) {
    disk_.PowerCut();
    files_->PowerCut();
  }
  if (power_cut || Random(2) == 0) {
    engine_.reset();
    StartEngine();
  }
  ComeBack(power_cut);
}

void HistoryWorld::ComeBack(bool power_cut) {
  for (Chat& chat : chats_) {
    if (power_cut) {
      OpenFresh(chat);
    } else {
      ResumeOrOpen(chat);
    }
  }
}

// A new KV node process. Compute nodes that survive resume; after a power cut they are gone too.
void HistoryWorld::Restart(bool power_cut) {
  CountWork();
  if (power_cut) CutPower();
  for (Chat& chat : chats_) {
    if (chat.session != nullptr) chat.epoch = chat.session->attachment().epoch;
    chat.session.reset();
  }
  engine_.reset();
  StartEngine();
  ComeBack(power_cut);
}

void HistoryWorld::Create() {
  CreateSession request;
  request.key = SmallKey();
  request.key.kv_format = layout_.kv_format;
  request.layout = layout_;
  const auto id =
      Await<SessionRef>([&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  Chat chat;
  chat.id = id->id;
  chat.at_checkpoint[OpSeq(0)] = Oracle();
  chats_.push_back(std::move(chat));
  OpenFresh(chats_.back());
}

void HistoryWorld::Fork() {
  if (sealed_.empty()) return;
  const Sealed& parent =
      sealed_[static_cast<std::size_t>(Random(static_cast<std::int64_t>(sealed_.size())))];
  const std::int64_t count = parent.oracle.token_count - parent.start;
  CreateSession request;
  request.key = SmallKey();
  request.key.kv_format = layout_.kv_format;
  request.layout = layout_;
  request.parent_segment_id = parent.segment;
  request.parent_token_count = parent.start + 1 + Random(count);
  const auto id =
      Await<SessionRef>([&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
  if (id.status().code() == absl::StatusCode::kNotFound) return;  // it went with its sessions
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  Chat chat;
  chat.id = id->id;
  chat.at_checkpoint[OpSeq(0)] = parent.oracle;
  chat.at_checkpoint[OpSeq(0)].CutTo(request.parent_token_count);
  chats_.push_back(std::move(chat));
  OpenFresh(chats_.back());
  CheckAll(chats_.back());
}

void HistoryWorld::Send(Chat& chat, ChangingOperation operation) {
  const OpSeq op_seq = chat.session->Send(operation);
  chat.replay.emplace_back(op_seq, std::move(operation));
}

void HistoryWorld::OpenFresh(Chat& chat) {
  chat.session.reset();
  auto session = TestSession::Open(*engine_, chat.id);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  chat.session = *std::move(session);
  const Attachment& attachment = chat.session->attachment();
  ASSERT_GE(attachment.op_seq, chat.acked) << "an acknowledged checkpoint is gone";
  ASSERT_TRUE(chat.at_checkpoint.contains(attachment.op_seq)) << attachment.op_seq.value();
  chat.now = chat.at_checkpoint[attachment.op_seq];
  chat.replay.clear();
  chat.acked = attachment.op_seq;
  ASSERT_EQ(attachment.token_count, chat.now.token_count);
  chat.recorded.clear();
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    const auto reply = chat.session->Read(GetCarried{layer});
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    const std::vector<CarriedEntries>& all = std::get<CarriedReply>(*reply).carried;
    ASSERT_TRUE(operations_.AreCarriedOf(chat.now, layer, all)) << "layer " << layer;
    for (const CarriedEntries& carried : all) {
      if (carried.buffer_cluster_id != kWindowBuffer) ++counts_["buffer read"];
      carried.brought_positions.ForEach([&](std::int64_t p) { chat.recorded.insert(p); });
    }
  }
}

bool HistoryWorld::ResumeOrOpen(Chat& chat) {
  auto session = TestSession::Resume(*engine_, chat.id, chat.epoch);
  if (!session.ok()) {
    EXPECT_EQ(session.status().code(), absl::StatusCode::kFailedPrecondition);
    OpenFresh(chat);
    return false;
  }
  ++counts_["resumed"];
  chat.session = *std::move(session);
  const OpSeq covered = chat.session->attachment().op_seq;
  EXPECT_GE(covered, chat.acked) << "an acknowledged checkpoint is gone";
  std::erase_if(chat.replay, [covered](const auto& op) { return op.first <= covered; });
  chat.acked = covered;
  for (const auto& [op_seq, operation] : chat.replay) {
    EXPECT_EQ(chat.session->Send(operation), op_seq);
    ++counts_["replayed operations"];
  }
  return true;
}

void HistoryWorld::Decode(Chat& chat) {
  // A long one is more than memory holds.
  const std::int64_t count = Random(12) == 0 ? 60 + Random(90) : 1 + Random(12);
  if (chat.now.token_count + count > kTokensMax) return;
  for (std::int64_t i = 0; i < count; ++i) {
    for (Append& op : operations_.Decode(chat.now, /*fresh_one_in=*/8)) Send(chat, std::move(op));
  }
}

void HistoryWorld::Split(Chat& chat) {
  for (Replace& op : operations_.Split(chat.now)) {
    if (!op.brought_positions.empty()) ++counts_["delayed split"];
    Send(chat, std::move(op));
    ++counts_["split"];
  }
}

void HistoryWorld::MergeOrRepair(Chat& chat) {
  if (Random(2) == 0) {
    for (Replace& op : operations_.Merge(chat.now)) {
      Send(chat, std::move(op));
      ++counts_["merge"];
    }
  } else if (std::optional<Replace> op = operations_.Repair(chat.now)) {
    Send(chat, *std::move(op));
    ++counts_["repair"];
  }
}

void HistoryWorld::Evict(Chat& chat) {
  std::optional<ChangingOperation> op = operations_.Evict(chat.now);
  if (!op) return;
  Send(chat, *std::move(op));
  ++counts_["evict"];
}

void HistoryWorld::Relate(Chat& chat) {
  const cairn::Fetch together = operations_.Relate(chat.now);
  // About one of so many is counted.
  for (std::uint64_t i = 0; i < kCoFetchSample; ++i) {
    const auto reply = chat.session->Read(together);
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  }
  ++counts_["relate"];
}

void HistoryWorld::CheckIndex(Chat& chat, std::int32_t layer) {
  const auto reply = chat.session->Read(GetIndex{layer});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  ASSERT_TRUE(RandomOperations::AreRowsOf(chat.now, layer, std::get<IndexReply>(*reply).rows))
      << "session " << chat.id.value() << " layer " << layer;
  const auto records = chat.session->Read(FetchIndex{layer});
  ASSERT_TRUE(records.ok()) << records.status().ToString();
  ASSERT_TRUE(RandomOperations::HasRecordsOf(chat.now, layer, std::get<FetchReply>(*records)))
      << "session " << chat.id.value() << " layer " << layer;
  const auto visible = chat.session->Read(FetchIndex{layer, true});
  ASSERT_TRUE(visible.ok()) << visible.status().ToString();
  const std::vector<IndexRow> rows =
      RandomOperations::VisibleRowsOf(std::get<FetchReply>(*visible));
  ASSERT_TRUE(RandomOperations::AreRowsOf(chat.now, layer, rows))
      << "session " << chat.id.value() << " layer " << layer;
}

void HistoryWorld::TakeCheckpoint(Chat& chat, Power power) {
  for (StageCarried& stage : operations_.StageAllCarried(chat.now, chat.recorded)) {
    Send(chat, std::move(stage));
  }
  if (Random(3) != 0) Send(chat, operations_.PutRows(chat.now));
  if (Random(2) == 0) Relate(chat);  // what has links is packed once it is sealed
  Checkpoint op =
      operations_.TakeCheckpoint(chat.now, chat.at_checkpoint.at(chat.acked).token_count,
                                 power == Power::kStays && Random(5) == 0);
  const bool seal = op.seal;
  // Not before all reads have their answers: a checkpoint that is in progress may be first to fail.
  if (power == Power::kFails) files_->CutAtSyncOf(".log");
  Send(chat, std::move(op));
  const OpSeq op_seq = chat.session->last_op_seq();
  chat.at_checkpoint[op_seq] = chat.now;
  if (power == Power::kFails) {
    EXPECT_FALSE(chat.session->WaitFor(op_seq).ok()) << "acknowledged without a sync";
    return;
  }
  ++counts_["checkpoint"];
  if (!seal && Random(3) == 0) {  // the end may come any time: a crash now leaves it in progress
    chat.recorded.clear();
    return;
  }
  const std::int64_t start = chat.session->attachment().segment_start;
  const auto done = chat.session->WaitFor(op_seq);
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  chat.acked = op_seq;
  std::erase_if(chat.replay, [op_seq](const auto& sent) { return sent.first <= op_seq; });
  chat.recorded.clear();
  if (done->sealed_segment_id.value() != 0) {
    ++counts_["seal"];
    sealed_.push_back({done->sealed_segment_id, start, chat.now});
    OpenFresh(chat);  // the next seal's start is the new segment's
  } else {
    chat.recorded = chat.now.CarriedPositions();
  }
}

void HistoryWorld::CheckCluster(Chat& chat, std::int32_t layer, std::int32_t head,
                                std::int64_t cluster) {
  const auto reply = chat.session->Read(
      cairn::Fetch{layer, {{head, ClusterId(cluster)}}, /*with_positions=*/true});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  const FetchedCluster& fetched = std::get<FetchReply>(*reply).clusters.at(0);
  const auto& clusters = chat.now.clusters[{layer, head}];
  const auto expected = clusters.find(cluster);
  if (expected == clusters.end()) {
    EXPECT_EQ(fetched.outcome, FetchOutcome::kUnknown);
    return;
  }
  ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
  for (const Span& span : fetched.spans) {
    if (span.direction == Direction::kDown) ++counts_["read from a high end"];
  }
  const JoinedCluster joined = Join(layout_, fetched);
  const Positions positions = Positions::FromUnsorted(expected->second);
  ASSERT_EQ(joined.positions, positions);
  ASSERT_TRUE(joined.entries == operations_.Entries(chat.now, layer, head, positions))
      << "session " << chat.id.value() << " layer " << layer << " head " << head << " cluster "
      << cluster;
}

void HistoryWorld::Fetch(Chat& chat) {
  const auto layer = static_cast<std::int32_t>(Random(2));
  CheckIndex(chat, layer);
  for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
    CheckCluster(chat, layer, head, 1 + Random(chat.now.next_id[{layer, head}] + 2));
  }
}

void HistoryWorld::CheckAll(Chat& chat) {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CheckIndex(chat, layer);
    for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
      for (std::int64_t id = 1; id <= chat.now.next_id[{layer, head}]; ++id) {
        CheckCluster(chat, layer, head, id);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  const auto tokens = chat.session->Read(
      GetTokens{0, static_cast<std::int32_t>(chat.at_checkpoint.at(chat.acked).token_count)});
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  const std::vector<std::int64_t>& truth = chat.at_checkpoint.at(chat.acked).truth;
  const std::vector<std::int32_t>& ids = std::get<TokensReply>(*tokens).token_ids;
  ASSERT_GE(ids.size(), truth.size());
  for (std::size_t i = 0; i < truth.size(); ++i) ASSERT_EQ(ids[i], truth[i]) << i;
}

void HistoryWorld::Delete(std::size_t index) {
  const SessionId id = chats_[index].id;
  chats_.erase(chats_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto done = Await<std::monostate>([&](auto cb) {
    engine_->DeleteSession(kDefaultApp, {id, ""}, std::move(cb));
  });
  ASSERT_TRUE(done.ok()) << done.status().ToString();
}

void HistoryWorld::Step() {
  if (chats_.empty()) return Create();
  const auto index = static_cast<std::size_t>(Random(static_cast<std::int64_t>(chats_.size())));
  Chat& chat = chats_[index];
  const std::int64_t dice = Random(100);
  if (dice < 38) return Decode(chat);
  if (dice < 40) return Rest();
  if (dice < 55) return Fetch(chat);
  if (dice < 60) return Split(chat);
  if (dice < 62) return MergeOrRepair(chat);
  if (dice < 64) return Evict(chat);
  if (dice < 66) return Relate(chat);
  if (dice < 68) return Send(chat, operations_.PutRows(chat.now));
  if (dice < 79) return TakeCheckpoint(chat);
  if (dice < 83) return CheckAll(chat);
  if (dice < 85 && chats_.size() < 4) return Create();
  if (dice < 89 && chats_.size() < 4) return Fork();
  if (dice < 92) return OpenFresh(chat);
  if (dice < 94) {
    chat.epoch = chat.session->attachment().epoch;
    chat.session.reset();
    ResumeOrOpen(chat);
    return;
  }
  if (dice < 95) return Delete(index);
  if (dice < 97) return Restart(/*power_cut=*/false);
  if (dice < 98) return Restart(/*power_cut=*/true);
  return Rest();
}

void HistoryWorld::End() {
  for (Chat& chat : chats_) CheckAll(chat);
  Rest();  // steps come to it too rarely for a few histories
  Restart(/*power_cut=*/true);
  for (Chat& chat : chats_) {
    CheckAll(chat);
    if (::testing::Test::HasFatalFailure()) return;
  }
  while (!chats_.empty()) Delete(chats_.size() - 1);
  absl::StatusOr<KvStats> stats;
  // What was on its way to a new place is given back when its write has ended.
  const auto give_up = std::chrono::steady_clock::now() + kGiveBackTimeMax;
  do {
    stats = Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
    ASSERT_TRUE(stats.ok());
  } while (stats->flash_used_bytes != 2 * kPageBytes && std::chrono::steady_clock::now() < give_up);
  EXPECT_EQ(stats->flash_used_bytes, 2 * kPageBytes) << "flash leaked";
  EXPECT_EQ(stats->lost_part_count, 0);
}

}  // namespace cairn::kv
