#include "tests/unit/engine/fault_world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv-node/engine/place/co_fetches.h"
#include "tests/unit/engine/history_runs.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kFaultDiskBytes = std::int64_t{8} << 20;
constexpr std::int64_t kFaultTokensMax = 400;
constexpr std::size_t kChatsMax = 4;
// Where data lies mostly: places are given from the front.
constexpr std::int64_t kRottenPagesMax = 300;

}  // namespace

FaultWorld::FaultWorld(std::uint64_t seed, const std::string& directory, Faults faults)
    : faults_(faults),
      may_flip_(seed / 2 % 2 == 0),
      random_(seed),
      operations_(layout_, [this](std::int64_t below) { return Random(below); }),
      directory_(directory),
      disk_({.size_bytes = kFaultDiskBytes, .seed = seed, .delay_polls_max = 3}) {}

FaultWorld::~FaultWorld() {
  chats_.clear();
  engine_.reset();
}

std::int64_t FaultWorld::Random(std::int64_t below) {
  return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
}

absl::Status FaultWorld::StartEngine() {
  MetaOptions meta;
  meta.path = directory_ + "/meta";
  meta.recover_each = std::chrono::milliseconds(0);
  meta.wrap_file_system = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
    files_ = std::make_shared<UnsyncedFs>(base, random_());
    return files_;
  };
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<MetaStore> store, MetaStore::Open(meta));
  EngineOptions options;
  options.place_entries_min = Random(3) != 0 ? 3 : 40;
  options.pending_bytes_max = 64 << 10;
  options.pooled_children_max = Random(2) == 0 ? 1 : 64;
  options.index_changed_min = Random(3) * 3;
  options.merge_gap_bytes = Random(3) * 2 * kPageBytes;
  if (Random(3) != 0) options.arena_bytes_max = 0;  // so that fetches read
  options.defragment = Random(4) != 0;
  options.defragment_idle = std::chrono::milliseconds(0);
  CAIRN_ASSIGN_OR_RETURN(engine_, Engine::Open(options, StoreId{}, disk_.Open(), std::move(store)));
  return absl::OkStatus();
}

void FaultWorld::Arm() {
  const bool lasting = faults_ == Faults::kLasting;
  const int few = static_cast<int>(1 + Random(3));
  if (files_ != nullptr && Random(8) == 0) {
    ++counts_["metadata armed"];
    return files_->FailNextLogSync(/*disk_full=*/Random(2) == 0);
  }
  switch (Random(lasting ? 10 : 5)) {
    case 0:
    case 1:
      return may_flip_ && Random(2) == 0 ? disk_.FlipNextReads(few) : disk_.FailNextReads(few);
    case 2:
      return disk_.FailNextWrites(1);
    case 3:
      return disk_.FailNextFlushes(1);
    case 4:
      return disk_.ShortenNext(few);
    case 5:
    case 6:
      return disk_.LoseNextWrites(1);
    case 7:
      return disk_.MisdirectNextWrites(1);
    default:
      rotten_ = true;
      return disk_.CorruptPage(2 + Random(kRottenPagesMax));
  }
}

void FaultWorld::CountHits() {
  const FaultyDiskHits hits = disk_.hits();
  counts_["failed read"] = hits.failed_reads;
  counts_["flipped read"] = hits.flipped_reads;
  counts_["failed write"] = hits.failed_writes;
  counts_["failed flush"] = hits.failed_flushes;
  counts_["shortened"] = hits.shortened;
  counts_["lost write"] = hits.lost_writes;
  counts_["misdirected write"] = hits.misdirected_writes;
  counts_["rotten page read"] = hits.corrupt_pages_read;
}

bool FaultWorld::MayBeLost(const FaultyDiskHits& before) {
  const FaultyDiskHits hits = disk_.hits();
  return rotten_ || hits.lost_writes > 0 || hits.misdirected_writes > 0 ||
         hits.flipped_reads > before.flipped_reads + 1;
}

bool FaultWorld::MayBeUnreadable(const FaultyDiskHits& before) {
  return gone_ || disk_.hits().failed_reads > before.failed_reads;
}

bool FaultWorld::MayLackRows(const FaultyDiskHits& before) {
  return MayBeLost(before) || disk_.hits().flipped_reads > 1;
}

absl::StatusOr<ReadReply> FaultWorld::Read(Chat& chat, const ReadOperation& operation) {
  const FaultyDiskHits before = disk_.hits();
  absl::StatusOr<ReadReply> reply = chat.session->Read(operation);
  if (reply.ok() || !Tells(reply.status(), kUnreadableNow)) return reply;
  if (!MayBeUnreadable(before)) {
    return Wrong("unreadable without a reason: {}", reply.status().ToString());
  }
  ++counts_["read again"];
  if (!gone_) disk_.ForgetFaults();
  return chat.session->Read(operation);
}

absl::StatusOr<KvStats> FaultWorld::Stats() {
  return Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
}

absl::Status FaultWorld::JudgeEnd(Chat& chat, const absl::Status& why) {
  if (IsWrong(why)) return why;
  if (Tells(why, kNotCommitted)) {
    ++counts_["not committed"];
    return absl::OkStatus();
  }
  const std::string said = Message(why);
  const bool clear =
      said.find(fmt::format("session {}", chat.id)) != std::string::npos &&
      (said.find("write") != std::string::npos || said.find("flush") != std::string::npos);
  if (!clear) return Wrong("session {} ended with: {}", chat.id, why.ToString());
  ++counts_["attachment ended"];
  const FaultyDiskHits hits = disk_.hits();
  // Each failed transfer is one session's, or the defragmenter's.
  if (!gone_ && counts_["attachment ended"] >
                    hits.failed_writes + hits.failed_flushes + counts_["ended without device"]) {
    return Wrong("session {} ended, and no write or flush failed: {}", chat.id, said);
  }
  if (gone_) ++counts_["ended without device"];
  return absl::OkStatus();
}

absl::Status FaultWorld::Open(std::size_t index) {
  while (true) {
    absl::Status end = OpenOnce(chats_[index]);
    if (end.ok()) return end;
    if (Tells(end, kCarriedLost)) {
      ++counts_["carried entries lost"];
      return Delete(index);
    }
    CAIRN_RETURN_IF_ERROR(JudgeEnd(chats_[index], end));
  }
}

absl::Status FaultWorld::OpenOnce(Chat& chat) {
  chat.session.reset();
  CAIRN_ASSIGN_OR_RETURN(chat.session, TestSession::Open(*engine_, chat.id));
  const Attachment& attachment = chat.session->attachment();
  if (attachment.op_seq < chat.acked || !chat.at_checkpoint.contains(attachment.op_seq)) {
    return Wrong("session {} is at operation {}; acknowledged was {}", chat.id, attachment.op_seq,
                 chat.acked);
  }
  chat.acked = attachment.op_seq;
  chat.now = chat.at_checkpoint.at(chat.acked);
  chat.at_checkpoint = {{chat.acked, chat.now}};
  if (attachment.token_count != chat.now.token_count) {
    return Wrong("session {} has {} tokens", chat.id, attachment.token_count);
  }
  CAIRN_RETURN_IF_ERROR(CheckClusterList(chat));
  return ReadCarried(chat);
}

absl::Status FaultWorld::OpenAll() {
  for (std::size_t i = chats_.size(); i-- > 0;) CAIRN_RETURN_IF_ERROR(Open(i));
  return absl::OkStatus();
}

absl::Status FaultWorld::Decode(Chat& chat) {
  const std::int64_t count = Random(8) == 0 ? 40 + Random(60) : 1 + Random(12);
  if (chat.now.token_count + count > kFaultTokensMax) return absl::OkStatus();
  for (std::int64_t i = 0; i < count; ++i) {
    for (Append& op : operations_.Decode(chat.now, /*fresh_one_in=*/8)) {
      chat.session->Send(std::move(op));
    }
  }
  return absl::OkStatus();
}

// A Replace of a parent that is lost is refused, and taken when it brings the entries.
absl::Status FaultWorld::SendReplace(Chat& chat, Replace op) {
  const FaultyDiskHits before = disk_.hits();
  const OpSeq op_seq = chat.session->Send(op);
  CAIRN_RETURN_IF_ERROR(chat.session->Read(GetClusters{0}).status());  // behind it
  absl::Status failure = chat.session->failure();
  if (failure.ok()) return absl::OkStatus();
  if (Tells(failure, kUnreadableNow) && MayBeUnreadable(before) && !gone_) {
    disk_.ForgetFaults();
    chat.session->ForgetFailures();
    chat.session->SendAs(op_seq, op);
    CAIRN_RETURN_IF_ERROR(chat.session->Read(GetClusters{0}).status());
    failure = chat.session->failure();
    if (failure.ok()) return absl::OkStatus();
  }
  if (!Tells(failure, "send the operation again")) return failure;
  if (!MayBeLost(before)) return Wrong("replace refused: {}", failure.ToString());
  ++counts_["replace refused"];
  chat.session->ForgetFailures();
  chat.session->SendAs(op_seq, operations_.WithAllBrought(chat.now, std::move(op)));
  CAIRN_RETURN_IF_ERROR(chat.session->Read(GetClusters{0}).status());
  return chat.session->failure();
}

absl::Status FaultWorld::Rearrange(Chat& chat) {
  std::vector<Replace> operations;
  std::optional<Replace> one;
  switch (Random(5)) {
    case 0:
      one = operations_.EvictCluster(chat.now);
      break;
    case 1:
      one = operations_.Repair(chat.now);
      break;
    case 2:
      operations = operations_.Merge(chat.now);
      break;
    case 3:
      if (std::optional<cairn::Evict> op = operations_.EvictBuffered(chat.now)) {
        chat.session->Send(*std::move(op));
      }
      break;
    default:
      operations = operations_.Split(chat.now);
  }
  if (one) operations.push_back(*std::move(one));
  for (Replace& op : operations) CAIRN_RETURN_IF_ERROR(SendReplace(chat, std::move(op)));
  counts_["replace"] += static_cast<int>(operations.size());
  return absl::OkStatus();
}

absl::Status FaultWorld::TakeCheckpoint(Chat& chat) {
  for (StageCarried& stage : operations_.StageAllCarried(chat.now, chat.recorded)) {
    chat.session->Send(std::move(stage));
  }
  if (Random(3) != 0) chat.session->Send(operations_.PutRows(chat.now));
  if (Random(2) == 0) {
    // It may fail, and is counted nevertheless: about one of so many.
    const Fetch together = operations_.Relate(chat.now);
    for (std::uint64_t i = 0; i < kCoFetchSample; ++i) {
      static_cast<void>(chat.session->Read(together));
    }
  }
  const bool seal = !ending_ && Random(4) == 0;
  const OpSeq op_seq = chat.session->Send(
      operations_.TakeCheckpoint(chat.now, chat.at_checkpoint.at(chat.acked).token_count, seal));
  chat.at_checkpoint[op_seq] = chat.now;
  chat.recorded.clear();
  // The end may come any time.
  if (!seal && !ending_ && Random(3) == 0) return absl::OkStatus();
  return FinishCheckpoint(chat, op_seq);
}

absl::Status FaultWorld::FinishCheckpoint(Chat& chat, OpSeq op_seq) {
  const std::int64_t start = chat.session->attachment().segment_start;
  CAIRN_ASSIGN_OR_RETURN(const Checkpointed done, chat.session->WaitFor(op_seq));
  ++counts_["checkpoint"];
  chat.acked = op_seq;
  chat.at_checkpoint = {{op_seq, chat.now}};
  if (done.sealed_segment_id.value() == 0) {
    chat.recorded = chat.now.CarriedPositions();
    return absl::OkStatus();
  }
  ++counts_["seal"];
  sealed_.push_back({done.sealed_segment_id, start, chat.now});
  return Open(static_cast<std::size_t>(&chat - chats_.data()));
}

absl::Status FaultWorld::Create(const CreateSession& request, Oracle oracle) {
  const auto id =
      Await<SessionRef>([&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
  if (absl::IsNotFound(id.status())) return absl::OkStatus();  // the parent went with its sessions
  if (Tells(id.status(), kNotCommitted)) return absl::OkStatus();  // nobody knows it if it is there
  CAIRN_RETURN_IF_ERROR(id.status());
  Chat chat;
  chat.id = id->id;
  chat.at_checkpoint[OpSeq(0)] = std::move(oracle);
  chats_.push_back(std::move(chat));
  return Open(chats_.size() - 1);
}

absl::Status FaultWorld::CreateEmpty() {
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  return Create(request, Oracle());
}

absl::Status FaultWorld::Fork() {
  if (sealed_.empty()) return absl::OkStatus();
  const Sealed& parent = sealed_[static_cast<std::size_t>(Random(std::ssize(sealed_)))];
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  request.parent_segment_id = parent.segment;
  request.parent_token_count = parent.start + 1 + Random(parent.oracle.token_count - parent.start);
  Oracle oracle = parent.oracle;
  oracle.CutTo(request.parent_token_count);
  return Create(request, std::move(oracle));
}

absl::Status FaultWorld::Delete(std::size_t index) {
  const SessionId id = chats_[index].id;
  chats_.erase(chats_.begin() + static_cast<std::ptrdiff_t>(index));
  absl::Status status;
  for (int tries = 0; tries < 3; ++tries) {
    status = Await<std::monostate>([&](auto cb) {
               engine_->DeleteSession(kDefaultApp, {id, ""}, std::move(cb));
             }).status();
    if (absl::IsNotFound(status) && tries > 0) return absl::OkStatus();  // it was done before
    if (!Tells(status, kNotCommitted)) break;
    ++counts_["not committed"];
  }
  return status;
}

absl::Status FaultWorld::Restart(bool power_cut) {
  if (power_cut) {
    disk_.PowerCut();
    files_->PowerCut();
    ++counts_["power cut"];
  }
  for (Chat& chat : chats_) chat.session.reset();
  engine_.reset();
  gone_ = false;
  CAIRN_RETURN_IF_ERROR(StartEngine());
  return OpenAll();
}

// The device goes away in the middle of a session's work.
absl::Status FaultWorld::LoseDevice(Chat& chat) {
  gone_ = true;
  disk_.DieAfter(Random(8));
  absl::Status end = Decode(chat);
  if (end.ok()) end = CheckSome(chat);
  if (end.ok()) end = TakeCheckpoint(chat);
  if (IsWrong(end)) return end;
  ++counts_["device lost"];
  return Restart(/*power_cut=*/true);
}

// Everybody leaves: what fails now fails the defragmenter, or the last writes of those who left.
absl::Status FaultWorld::Rest() {
  for (Chat& chat : chats_) chat.session.reset();
  CAIRN_ASSIGN_OR_RETURN(KvStats stats, Stats());
  const std::int64_t packed_bytes = stats.write_defragment_bytes;
  const FaultyDiskHits before = disk_.hits();
  if (!ending_ && Random(2) == 0) disk_.FailNextWrites(1);
  for (std::int64_t rounds = 100 + Random(500); rounds > 0; --rounds) {
    if (!ending_ && rounds % 50 == 0) Arm();
    CAIRN_ASSIGN_OR_RETURN(stats, Stats());
  }
  const FaultyDiskHits hits = disk_.hits();
  counts_["page packed"] +=
      static_cast<int>((stats.write_defragment_bytes - packed_bytes) / kPageBytes);
  counts_["read failed at rest"] += hits.failed_reads - before.failed_reads;
  counts_["write failed at rest"] += hits.failed_writes - before.failed_writes;
  counts_["flush failed at rest"] += hits.failed_flushes - before.failed_flushes;
  return OpenAll();
}

absl::Status FaultWorld::Act(Chat& chat) {
  const std::int64_t dice = Random(10);
  if (dice < 4) return Decode(chat);
  if (dice < 6) return CheckSome(chat);
  if (dice < 8) return Rearrange(chat);
  return TakeCheckpoint(chat);
}

absl::Status FaultWorld::Step() {
  if (engine_ == nullptr) CAIRN_RETURN_IF_ERROR(StartEngine());
  if (Random(3) == 0) Arm();
  const std::int64_t dice = Random(100);
  const bool may_create = chats_.size() < kChatsMax;
  if (chats_.empty() || (dice < 4 && may_create)) return CreateEmpty();
  if (dice < 8 && may_create) return Fork();
  const auto index = static_cast<std::size_t>(Random(std::ssize(chats_)));
  Chat& chat = chats_[index];
  if (dice < 12) return Rest();
  if (dice < 14) return Restart(/*power_cut=*/Random(2) == 0);
  if (dice < 15) return LoseDevice(chat);
  if (dice < 16) return Delete(index);
  if (dice < 19) return Open(index);
  absl::Status end = dice < 23 ? CheckAll(chat) : Act(chat);
  // The end of an attachment may also be told behind an operation that waited for nothing.
  if (index < chats_.size() && end.ok()) end = chats_[index].session->failure();
  CountHits();
  if (end.ok()) return end;
  CAIRN_RETURN_IF_ERROR(JudgeEnd(chat, end));
  return Open(index);
}

// Clusters that are lost are brought again.
absl::Status FaultWorld::RepairAll(Chat& chat) {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
      std::set<std::int64_t> lost;
      for (std::int64_t id = 1; id <= chat.now.next_id[{layer, head}]; ++id) {
        CAIRN_RETURN_IF_ERROR(CheckCluster(chat, {layer, head}, id, lost));
      }
      for (const std::int64_t id : lost) {
        Replace op = operations_.Repair(chat.now, {layer, head}, id, /*all=*/true);
        CAIRN_RETURN_IF_ERROR(SendReplace(chat, std::move(op)));
        ++counts_["lost cluster repaired"];
      }
    }
  }
  return TakeCheckpoint(chat);
}

absl::Status FaultWorld::End() {
  disk_.ForgetFaults();
  ending_ = true;
  CAIRN_RETURN_IF_ERROR(Rest());
  for (Chat& chat : chats_) CAIRN_RETURN_IF_ERROR(RepairAll(chat));
  // Without a restart what failed commits have named is given back too.
  if (Random(2) == 0) CAIRN_RETURN_IF_ERROR(Restart(/*power_cut=*/true));
  const int lost_before = counts_["cluster reported lost"];
  for (Chat& chat : chats_) CAIRN_RETURN_IF_ERROR(CheckAll(chat));
  if (counts_["cluster reported lost"] > lost_before) return Wrong("lost again behind a repair");
  // Sessions whose creation was not committed, as it seemed, may be there.
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SessionInfo> sessions,
                         Await<std::vector<SessionInfo>>([&](auto done) {
                           engine_->ListSessions(kDefaultApp, ListDetail::kRows, std::move(done));
                         }));
  for (const SessionInfo& info : sessions) {
    if (std::none_of(chats_.begin(), chats_.end(),
                     [&](const Chat& chat) { return chat.id == info.session_id; })) {
      chats_.emplace_back().id = info.session_id;
    }
  }
  while (!chats_.empty()) CAIRN_RETURN_IF_ERROR(Delete(chats_.size() - 1));
  CountHits();
  // What was on its way to a new place is given back when its write has ended.
  const auto give_up = std::chrono::steady_clock::now() + kGiveBackTimeMax;
  std::int64_t leaked_bytes = 0;
  do {
    CAIRN_ASSIGN_OR_RETURN(const KvStats stats, Stats());
    leaked_bytes = stats.flash_used_bytes - 2 * kPageBytes;
    if (leaked_bytes == 0) return absl::OkStatus();
  } while (std::chrono::steady_clock::now() < give_up);
  return Wrong("flash leaked: {} bytes", leaked_bytes);
}

}  // namespace cairn::kv
