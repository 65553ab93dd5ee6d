#include "tests/crash/crash_world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv-node/engine/place/co_fetches.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kTokensMax = 900;
constexpr std::size_t kChatsMax = 5;
constexpr std::size_t kSealedMax = 8;
constexpr std::chrono::seconds kGivenBackWaitMax{20};

// What the store shows and should not.
template <typename... Args>
absl::Status Wrong(const fmt::format_string<Args...>& format, Args&&... args) {
  return absl::InternalError("WRONG: " + fmt::format(format, std::forward<Args>(args)...));
}

// What the store says it cannot show.
template <typename... Args>
absl::Status Lost(const fmt::format_string<Args...>& format, Args&&... args) {
  return absl::DataLossError("LOST: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

void CrashWorld::Disconnect() {
  for (Chat& chat : chats_) chat.session.reset();
  node_.reset();
}

absl::Status CrashWorld::Connect(std::unique_ptr<compute::KvNode> node) {
  node_ = std::move(node);
  CAIRN_RETURN_IF_ERROR(DropUnknownSessions());
  for (Chat& chat : chats_) {
    CAIRN_RETURN_IF_ERROR(Open(chat));
    CAIRN_RETURN_IF_ERROR(CheckAll(chat));
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::DropUnknownSessions() {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SessionInfo> infos, node_->List(ListDetail::kRows));
  std::set<SessionId> there;
  for (const SessionInfo& info : infos) there.insert(info.session_id);
  std::size_t unknown = there.size();
  for (const Chat& chat : chats_) {
    if (there.contains(chat.id)) {
      --unknown;
      if (!chat.deleting) there.erase(chat.id);
    } else if (!chat.deleting) {
      return Wrong("session {} is gone", chat.id);
    } else {
      ++counts_["delete that a dying node finished"];
    }
  }
  std::erase_if(chats_, [](const Chat& chat) { return chat.deleting; });
  if (unknown > (creating_ ? 1U : 0U)) {
    return Wrong("{} sessions are there that nobody asked for", unknown);
  }
  for (const SessionId id : there) CAIRN_RETURN_IF_ERROR(node_->Delete({id}));
  creating_ = false;
  return absl::OkStatus();
}

absl::Status CrashWorld::Open(Chat& chat) {
  chat.session.reset();
  CAIRN_ASSIGN_OR_RETURN(chat.session, node_->Open({chat.id}));
  chat.session->SetReplayMode(compute::ReplayMode::kNothing);
  CAIRN_ASSIGN_OR_RETURN(
      const PolicyStateReply policy,
      compute::Wait<PolicyStateReply>(chat.session->StartRead(GetPolicyState{})));
  const std::int64_t number = policy.state.empty() ? 0 : std::stoll(policy.state);
  const auto saved = chat.saved.find(number);
  if (saved == chat.saved.end()) {
    return Wrong("session {} shows checkpoint {}; the last that was acknowledged is {}", chat.id,
                 number, chat.acked);
  }
  if (number != chat.acked) ++counts_["checkpoint that a dying node finished"];
  chat.acked = number;
  chat.now = saved->second;
  chat.saved = {{number, chat.now}};
  if (chat.session->attachment().token_count != chat.now.token_count) {
    return Wrong("session {} has {} tokens at checkpoint {}, not {}", chat.id,
                 chat.session->attachment().token_count, number, chat.now.token_count);
  }
  return ReadCarried(chat);
}

absl::Status CrashWorld::ReadCarried(Chat& chat) {
  chat.recorded.clear();
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_ASSIGN_OR_RETURN(const CarriedReply reply,
                           compute::Wait<CarriedReply>(chat.session->StartRead(GetCarried{layer})));
    if (!operations_.AreCarriedOf(chat.now, layer, reply.carried)) {
      return Wrong("session {} carries other entries in layer {}", chat.id, layer);
    }
    for (const CarriedEntries& carried : reply.carried) {
      if (carried.buffer_cluster_id != kWindowBuffer) ++counts_["buffer read"];
      carried.brought_positions.ForEach([&](std::int64_t p) { chat.recorded.insert(p); });
    }
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::Create() {
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  creating_ = true;
  CAIRN_ASSIGN_OR_RETURN(const SessionRef created, node_->Create(request));
  creating_ = false;
  Chat chat;
  chat.id = created.id;
  chat.saved[0] = Oracle();
  chats_.push_back(std::move(chat));
  return Open(chats_.back());
}

absl::Status CrashWorld::Fork() {
  if (sealed_.empty()) return absl::OkStatus();
  const Sealed& parent =
      sealed_[static_cast<std::size_t>(Random(static_cast<std::int64_t>(sealed_.size())))];
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  request.parent_segment_id = parent.segment;
  request.parent_token_count = parent.start + 1 + Random(parent.oracle.token_count - parent.start);
  creating_ = true;
  const absl::StatusOr<SessionRef> created = node_->Create(request);
  if (!created.ok() && !absl::IsNotFound(created.status())) return created.status();
  creating_ = false;
  if (!created.ok()) return absl::OkStatus();  // it went with its sessions
  Chat chat;
  chat.id = created->id;
  chat.acked = parent.number;
  chat.saved[parent.number] = parent.oracle;
  chat.saved[parent.number].CutTo(request.parent_token_count);
  chats_.push_back(std::move(chat));
  ++counts_["fork"];
  CAIRN_RETURN_IF_ERROR(Open(chats_.back()));
  return CheckAll(chats_.back());
}

absl::Status CrashWorld::Decode(Chat& chat) {
  const std::int64_t count = 1 + Random(Random(4) == 0 ? 80 : 10);
  if (chat.now.token_count + count > kTokensMax) return absl::OkStatus();
  for (std::int64_t i = 0; i < count; ++i) {
    for (Append& op : operations_.Decode(chat.now, /*fresh_one_in=*/12)) {
      CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(op)));
    }
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::Split(Chat& chat) {
  for (Replace& op : operations_.Split(chat.now)) {
    if (!op.brought_positions.empty()) ++counts_["delayed split"];
    CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(op)));
    ++counts_["split"];
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::MergeOrRepair(Chat& chat) {
  if (Random(2) == 0) {
    for (Replace& op : operations_.Merge(chat.now)) {
      CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(op)));
      ++counts_["merge"];
    }
    return absl::OkStatus();
  }
  std::optional<Replace> op = operations_.Repair(chat.now);
  if (!op) return absl::OkStatus();
  ++counts_["repair"];
  return chat.session->Send(*std::move(op));
}

absl::Status CrashWorld::Evict(Chat& chat) {
  std::optional<ChangingOperation> op = operations_.Evict(chat.now);
  if (!op) return absl::OkStatus();
  ++counts_["evict"];
  return chat.session->Send(*std::move(op));
}

// What is fetched together often enough is placed together.
absl::Status CrashWorld::Relate(Chat& chat) {
  const Fetch together = operations_.Relate(chat.now);
  for (std::uint64_t i = 0; i < kCoFetchSample; ++i) {
    CAIRN_RETURN_IF_ERROR(chat.session->StartRead(together).get().status());
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::TakeCheckpoint(Chat& chat) {
  const std::set<std::int64_t> carried = chat.now.CarriedPositions();
  for (StageCarried& stage : operations_.StageAllCarried(chat.now, chat.recorded)) {
    CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(stage)));
  }
  if (Random(3) == 0) CAIRN_RETURN_IF_ERROR(Relate(chat));
  CAIRN_RETURN_IF_ERROR(chat.session->Send(operations_.PutRows(chat.now)));
  const std::int64_t number = next_number_++;
  PutPolicyState policy;
  policy.version = 1;
  policy.state = fmt::format("{}", number);
  CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(policy)));
  Checkpoint op = operations_.TakeCheckpoint(chat.now, chat.saved.at(chat.acked).token_count,
                                             /*seal=*/Random(5) == 0);
  chat.saved[number] = chat.now;
  CAIRN_RETURN_IF_ERROR(chat.session->Send(std::move(op)));
  ++counts_["checkpoint"];
  // Others go on while it is under way: the kill may come then.
  if (Random(2) == 0) {
    CAIRN_RETURN_IF_ERROR(
        Decode(chats_[static_cast<std::size_t>(Random(static_cast<std::int64_t>(chats_.size())))]));
  }
  return FinishCheckpoint(chat, number, carried);
}

absl::Status CrashWorld::FinishCheckpoint(Chat& chat, std::int64_t number,
                                          const std::set<std::int64_t>& carried) {
  const std::int64_t start = chat.session->attachment().segment_start;
  CAIRN_ASSIGN_OR_RETURN(const Checkpointed done, chat.session->WaitForCheckpoint());
  ++counts_["acknowledged"];
  chat.acked = number;
  chat.saved = {{number, chat.saved.at(number)}};
  chat.recorded.clear();
  if (done.sealed_segment_id.value() == 0) {
    chat.recorded = carried;
    return absl::OkStatus();
  }
  ++counts_["seal"];
  if (sealed_.size() >= kSealedMax) sealed_.erase(sealed_.begin());
  sealed_.push_back({done.sealed_segment_id, start, number, chat.saved.at(number)});
  return Open(chat);  // the next seal's start is the new segment's
}

absl::Status CrashWorld::SealClosed(Chat& chat) {
  chat.session.reset();
  const absl::StatusOr<SealedSegment> sealed = node_->Seal({chat.id});
  // The stream's end may not have reached the node yet: then it says that the session is open.
  if (!sealed.ok() && !absl::IsFailedPrecondition(sealed.status())) return sealed.status();
  if (sealed.ok()) ++counts_["seal of a closed session"];
  return Open(chat);
}

// Everybody leaves for a while: what is sealed may be placed again meanwhile.
absl::Status CrashWorld::Rest() {
  for (Chat& chat : chats_) chat.session.reset();
  std::int64_t packed_bytes = 0;
  // Often in the middle of it, sometimes behind its end.
  for (std::int64_t rounds = Random(Random(3) == 0 ? 1000 : 60); rounds > 0; --rounds) {
    CAIRN_ASSIGN_OR_RETURN(const KvStats stats, node_->Stats());
    packed_bytes = stats.write_defragment_bytes;
  }
  counts_["page packed"] += static_cast<int>(packed_bytes / kPageBytes);
  for (Chat& chat : chats_) CAIRN_RETURN_IF_ERROR(Open(chat));
  return absl::OkStatus();
}

absl::Status CrashWorld::CheckCluster(const Chat& chat, std::int32_t layer,
                                      const FetchedCluster& fetched) const {
  const auto [head, id] = fetched.cluster;
  const auto clusters = chat.now.clusters.find({layer, head});
  Positions positions;
  if (clusters != chat.now.clusters.end() && clusters->second.contains(id.value())) {
    positions = Positions::FromUnsorted(clusters->second.at(id.value()));
  }
  if (positions.empty()) {
    if (fetched.outcome == FetchOutcome::kUnknown) return absl::OkStatus();
    return Wrong("session {} layer {} head {} shows cluster {}, which it does not have", chat.id,
                 layer, head, id);
  }
  const JoinedCluster joined = Join(layout_, fetched);
  if (fetched.outcome == FetchOutcome::kFound && joined.positions == positions &&
      joined.entries == operations_.Entries(chat.now, layer, head, positions)) {
    return absl::OkStatus();
  }
  if (fetched.outcome == FetchOutcome::kLost) {
    return Lost("session {} layer {} head {} cluster {}", chat.id, layer, head, id);
  }
  if (fetched.outcome == FetchOutcome::kUnreadable) {
    return Unavailable("session {} layer {} head {} cluster {}: the device did not give it",
                       chat.id, layer, head, id);
  }
  return Wrong("session {} layer {} head {} cluster {}: outcome {}, {} positions of {}, or bytes",
               chat.id, layer, head, id, static_cast<int>(fetched.outcome),
               joined.positions.count(), positions.count());
}

// Clusters of one layer, in one fetch.
absl::Status CrashWorld::CheckClusters(Chat& chat, std::int32_t layer,
                                       std::vector<ClusterRef> clusters) {
  const std::size_t count = clusters.size();
  CAIRN_ASSIGN_OR_RETURN(const FetchReply reply,
                         compute::Wait<FetchReply>(chat.session->StartRead(
                             Fetch{layer, std::move(clusters), /*with_positions=*/true})));
  if (reply.clusters.size() != count) return Wrong("{} clusters answered", reply.clusters.size());
  for (const FetchedCluster& fetched : reply.clusters) {
    CAIRN_RETURN_IF_ERROR(CheckCluster(chat, layer, fetched));
    ++counts_["cluster compared"];
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::CheckSome(Chat& chat) {
  const auto layer = static_cast<std::int32_t>(Random(2));
  std::vector<ClusterRef> clusters;
  for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
    clusters.push_back({head, ClusterId(1 + Random(chat.now.next_id[{layer, head}] + 2))});
  }
  return CheckClusters(chat, layer, std::move(clusters));
}

absl::Status CrashWorld::CheckIndex(Chat& chat, std::int32_t layer) {
  CAIRN_ASSIGN_OR_RETURN(const IndexReply index,
                         compute::Wait<IndexReply>(chat.session->StartRead(GetIndex{layer})));
  CAIRN_ASSIGN_OR_RETURN(const FetchReply visible,
                         compute::Wait<FetchReply>(chat.session->StartRead(
                             FetchIndex{.layer = layer, .only_visible = true})));
  const std::vector<IndexRow> visible_rows = RandomOperations::VisibleRowsOf(visible);
  if (!RandomOperations::AreSomeRowsOf(chat.now, layer, index.rows) ||
      !RandomOperations::AreSomeRowsOf(chat.now, layer, visible_rows)) {
    return Wrong("session {} layer {} has other index rows", chat.id, layer);
  }
  if (!RandomOperations::AreRowsOf(chat.now, layer, index.rows) ||
      !RandomOperations::AreRowsOf(chat.now, layer, visible_rows)) {
    return Lost("session {} layer {} is without some of its index rows", chat.id, layer);
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::CheckAll(Chat& chat) {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    std::vector<ClusterRef> clusters;
    for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
      // One more than there should be.
      for (std::int64_t id = 1; id <= chat.now.next_id[{layer, head}] + 1; ++id) {
        clusters.push_back({head, ClusterId(id)});
      }
    }
    CAIRN_RETURN_IF_ERROR(CheckClusters(chat, layer, std::move(clusters)));
    CAIRN_RETURN_IF_ERROR(CheckIndex(chat, layer));
  }
  const std::vector<std::int64_t>& truth = chat.saved.at(chat.acked).truth;
  CAIRN_ASSIGN_OR_RETURN(const TokensReply tokens,
                         compute::Wait<TokensReply>(chat.session->StartRead(
                             GetTokens{0, static_cast<std::int32_t>(truth.size())})));
  if (!std::equal(truth.begin(), truth.end(), tokens.token_ids.begin(), tokens.token_ids.end())) {
    return Wrong("session {} has other token ids", chat.id);
  }
  return absl::OkStatus();
}

absl::Status CrashWorld::Delete(std::size_t index) {
  Chat& chat = chats_[index];
  chat.session.reset();
  chat.deleting = true;
  CAIRN_RETURN_IF_ERROR(node_->Delete({chat.id}));
  chats_.erase(chats_.begin() + static_cast<std::ptrdiff_t>(index));
  ++counts_["delete"];
  return absl::OkStatus();
}

absl::Status CrashWorld::End() {
  while (!chats_.empty()) CAIRN_RETURN_IF_ERROR(Delete(chats_.size() - 1));
  CAIRN_ASSIGN_OR_RETURN(KvStats stats, node_->Stats());
  // What was on its way to a new place is given back when its write has ended, and the metadata's
  // thread has said that its segment is gone.
  const auto deadline = std::chrono::steady_clock::now() + kGivenBackWaitMax;
  while (stats.flash_used_bytes > 2 * kPageBytes && std::chrono::steady_clock::now() < deadline) {
    CAIRN_ASSIGN_OR_RETURN(stats, node_->Stats());
  }
  if (stats.flash_used_bytes == 2 * kPageBytes && stats.lost_part_count == 0) {
    return absl::OkStatus();
  }
  return Wrong("{} bytes of flash are in use without a session, {} parts are lost",
               stats.flash_used_bytes, stats.lost_part_count);
}

absl::Status CrashWorld::Step() {
  if (chats_.empty()) return Create();
  const auto index = static_cast<std::size_t>(Random(static_cast<std::int64_t>(chats_.size())));
  Chat& chat = chats_[index];
  const bool old = chat.now.token_count > kTokensMax * 3 / 4;
  const std::int64_t dice = Random(100);
  if (dice < 35) return Decode(chat);
  if (dice < 42) return CheckSome(chat);
  if (dice < 49) return Split(chat);
  if (dice < 52) return MergeOrRepair(chat);
  if (dice < 54) return Evict(chat);
  if (dice < 80) return TakeCheckpoint(chat);
  if (dice < 84 && chats_.size() < kChatsMax) return Create();
  if (dice < 90 && chats_.size() < kChatsMax) return Fork();
  if (dice < 93) return Open(chat);
  if (dice < 95) return SealClosed(chat);
  if (dice < 97) return Rest();
  if (dice < (old ? 100 : 99)) return Delete(index);
  return Decode(chat);
}

}  // namespace cairn::kv
