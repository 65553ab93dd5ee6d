#include "tests/sim/sim_chat.h"

#include <algorithm>
#include <utility>

#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/loss.h"
#include "kv-node/service/channel_stream.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::sim {
namespace {

// What is sent between two checkpoints fits in, or does not.
constexpr std::int64_t kReplayBytesLarge = std::int64_t{64} << 20;
constexpr std::int64_t kReplayBytesSmallMin = std::int64_t{2} << 10;
constexpr std::int64_t kReplayBytesSmallMax = std::int64_t{16} << 10;

// Replies that it reads at once: up to more than the node keeps leases of.
constexpr std::int64_t kHeldMax = kv::kLeasedFetchesMax + 16;

std::int64_t ReplayBytes(const SimWire::Random& random) {
  if (random(4) != 0) return kReplayBytesLarge;
  return kReplayBytesSmallMin + random(kReplayBytesSmallMax - kReplayBytesSmallMin);
}

}  // namespace

SimChat::SimChat(SimContext& context, std::optional<SimSealed> parent)
    : context_(context),
      parent_(std::move(parent)),
      replay_bytes_max_(ReplayBytes(context.random)),
      uses_arena_(context.random(4) != 0),
      held_max_(context.random(kHeldMax)),
      segment_start_(parent_ ? parent_->oracle.token_count : 0) {
  constexpr SessionLifetime kLifetimes[] = {SessionLifetime::kEphemeral,
                                            SessionLifetime::kFromCheckpoint};
  const std::int64_t dice = context.random(6);
  if (dice < 2) lifetime_ = kLifetimes[dice];
  *may_go_ = lifetime_ != SessionLifetime::kPermanent;
}

SimChat::~SimChat() { DropStream(); }

bool SimChat::MayLackRoom() const {
  return context_.was_metadata_disk_full || asked_store_->page_count == kSmallStorePages;
}

bool SimChat::KeepsLittle() const { return replay_bytes_max_ < kReplayBytesLarge; }

bool SimChat::is_quiet() const {
  return is_gone_ ||
         (IsAttached() && !calls_ && protocol_->state() == State::kOpen && expected_.empty() &&
          unsent_.empty() && carried_to_come_ == 0 && checkpoint_ == OpSeq());
}

std::string SimChat::Describe() const {
  const int state = protocol_ == nullptr ? -1 : static_cast<int>(protocol_->state());
  return fmt::format(
      "session {} (call {}, stream {}, attaching {}, state {}, reads {}, unsent {}, carried {}, "
      "checkpoint {}, over {}, deletes {})",
      session_.id, calls_, stream_ != nullptr, attaching_, state, expected_.size(), unsent_.size(),
      carried_to_come_, checkpoint_, owner_is_over_, deletes_);
}

// ---- the conversation's life ----

void SimChat::Create() {
  if (!context_.node.is_up()) return;
  SimStore* const store = &context_.node.store();
  // A segment is known by the number that its store gave it.
  if (parent_ && parent_->store != store) return;
  if (IsReplacement()) {
    const std::shared_ptr<SimChat> repeated = repeated_.lock();
    is_gone_ = repeated == nullptr || repeated->is_gone_;
    if (is_gone_ || repeated->store_ != store) return;
  }
  // Two stores must not have a session of one uid.
  if (asked_store_ != store) uid_ = context_.RandomUid();
  asked_store_ = store;
  asked_time_ = context_.now;
  CreateSession request;
  request.key = kv::SmallKey();
  request.layout = context_.operations.layout();
  request.uid = uid_;
  request.lifetime = lifetime_;
  if (parent_) {
    request.parent_segment_id = parent_->segment;
    request.parent = parent_->session;
    request.parent_token_count = parent_->oracle.token_count;
  }
  calls_ = true;
  context_.node.Call<SessionRef>(
      [request](kv::Engine& engine, kv::Callback<SessionRef> done) {
        engine.Create(kDefaultApp, request, std::move(done));
      },
      [this, store, life = std::weak_ptr<int>(life_)](absl::StatusOr<SessionRef> created) {
        if (life.expired()) return;
        if (created.ok()) store_ = store;
        OnCreated(std::move(created));
      });
}

void SimChat::OnCreated(absl::StatusOr<SessionRef> created) {
  calls_ = false;
  if (!created.ok()) {
    const absl::Status& why = created.status();
    // The parent went with its sessions, or with what its session held before.
    const bool lacks_parent =
        (absl::IsNotFound(why) || absl::IsFailedPrecondition(why)) && parent_ && *parent_->may_go;
    is_gone_ = lacks_parent;
    const bool may_be =
        lacks_parent || compute::IsLoss(why) || (absl::IsResourceExhausted(why) && MayLackRoom());
    if (!may_be) context_.Wrong("create: {}", Message(why));
    return;
  }
  session_ = *created;
  context_.heard_uids.emplace(store_->name, session_.uid);
  if (session_.uid != uid_) context_.Wrong("session {} has another uid", session_.id);
  saved_ = {{OpSeq(), FirstOracle()}};
  ++context_.counts[parent_ ? "forked" : "created"];
}

std::shared_ptr<const kv::Oracle> SimChat::FirstOracle() const {
  return std::make_shared<kv::Oracle>(parent_ ? parent_->oracle : kv::Oracle());
}

// By the node that runs.
bool SimChat::IsServed() const {
  return store_ != nullptr && !is_gone_ && context_.node.is_up() &&
         &context_.node.store() == store_;
}

void SimChat::Delete() {
  if (calls_ || !IsServed()) return;
  deletes_ = true;
  *may_go_ = true;
  calls_ = true;
  ++delete_tries_;
  EndStream();
  context_.node.Call<std::monostate>(
      [session = session_](kv::Engine& engine, kv::Callback<std::monostate> done) {
        engine.DeleteSession(kDefaultApp, session, std::move(done));
      },
      ForThisLife(&SimChat::OnDeleted));
}

void SimChat::OnDeleted(const absl::StatusOr<std::monostate>& deleted) {
  calls_ = false;
  const bool was_gone = absl::IsNotFound(deleted.status()) &&
                        (delete_tries_ > 1 || NoteIfDeleted() || NoteIfSuperseded());
  if (deleted.ok() || was_gone) {
    is_gone_ = true;
    ++context_.counts["deleted"];
  } else if (NoteIfOlder(deleted.status())) {
    return;
  } else if (absl::IsNotFound(deleted.status()) && !NoteIfAbandoned()) {
    context_.Wrong("session {} is gone before it was deleted", session_.id);
  }
}

// Whether it may be gone because nobody was attached to it for long.
bool SimChat::NoteIfAbandoned() {
  const bool may_go = lifetime_ == SessionLifetime::kEphemeral ||
                      (lifetime_ == SessionLifetime::kFromCheckpoint && acked_ == OpSeq());
  if (!may_go || context_.now - asked_time_ < kv::EngineOptions().abandoned_after) return false;
  is_gone_ = true;
  ++context_.counts["abandoned"];
  return true;
}

void SimChat::Close() {
  if (!IsAttached() || calls_ || deletes_ || protocol_ == nullptr) return;
  const Epoch epoch = protocol_->attachment().epoch;
  Crash();
  ++context_.counts["closed"];
  // Whoever came meanwhile stays; nobody waits for the answer.
  context_.node.Call<std::monostate>(
      [session = session_.id, epoch](kv::Engine& engine, kv::Callback<std::monostate> done) {
        engine.CloseSession(kDefaultApp, session, epoch, std::move(done));
      },
      [](const absl::StatusOr<std::monostate>&) {});
}

void SimChat::NoteIn(SimCopy& copy) const {
  if (is_gone_ || !IsStored()) return;
  auto saved = saved_;
  AddReplacement(saved);
  // Nothing else is in the copy. A later history may give an operation's number anew.
  const OpSeq stored = *store_->StoredOpSeq(session_.uid);
  std::erase_if(saved, [stored](const auto& each) { return each.first != stored; });
  if (saved.empty()) {
    return context_.Wrong("session {} is stored at operation {}", session_.id, stored);
  }
  copy.saved[session_.uid] = std::move(saved);
}

void SimChat::OnPutBack(const SimStore& store, const SimCopy& copy) {
  if (store_ == nullptr) {
    // Its parent's number may become another's.
    if (parent_ && parent_->store == &store && !copy.sealed.contains(parent_->segment)) {
      is_gone_ = true;
    }
    return;
  }
  if (store_ != &store || is_gone_) return;
  is_older_ = true;
  last_epoch_ = Epoch();
  const auto found = copy.saved.find(session_.uid);
  may_be_unknown_ = found == copy.saved.end();
  std::map<OpSeq, std::shared_ptr<const kv::Oracle>> shown = {{OpSeq(), FirstOracle()}};
  if (!may_be_unknown_) shown = found->second;
  acked_ = shown.begin()->first;
  shown.insert(saved_.begin(), saved_.end());
  AddReplacement(shown);
  supersession_ = nullptr;
  others_deletion_ = nullptr;
  others_epoch_ = std::make_shared<Epoch>();
  saved_ = std::move(shown);
}

bool SimChat::IsStored() const { return store_->StoredOpSeq(session_.uid).has_value(); }

// Whether that is how it learns that it has met an older copy of its store.
bool SimChat::NoteIfOlder(const absl::Status& status) {
  if (!is_older_) return false;
  ++context_.counts["older store noticed"];
  // Its number may be another's by now.
  is_gone_ = may_be_unknown_ && !IsStored();
  return is_gone_ || absl::IsDataLoss(status) || absl::IsAborted(status) ||
         absl::IsFailedPrecondition(status);
}

void SimChat::SealAsStored() {
  if (calls_ || deletes_ || !IsServed()) return;
  Crash();
  has_rival_ = true;  // a seal ends the epoch of whoever came meanwhile
  calls_ = true;
  context_.node.Call<SealedSegment>(
      [session = session_](kv::Engine& engine, kv::Callback<SealedSegment> done) {
        engine.SealSession(kDefaultApp, session, std::move(done));
      },
      Taking(ForThisLife(&SimChat::OnSealed)));
}

void SimChat::OnSealed(const absl::StatusOr<SealedSegment>& sealed) {
  calls_ = false;
  // Of several checkpoints, or histories, it is unknown which.
  if (!sealed.ok() || saved_.size() != 1 || supersession_ != nullptr) return;
  const std::shared_ptr<const kv::Oracle> oracle = saved_.begin()->second;
  if (sealed->token_count != oracle->token_count) {
    return context_.Wrong("session {} was sealed at {} tokens, not {}", session_.id,
                          sealed->token_count, oracle->token_count);
  }
  ++context_.counts["sealed by the node"];
  // Without a token of its own it names what was sealed before, which shows what it did then.
  if (oracle->token_count == segment_start_) return;
  // Where it began is not told: a fork of its last token will do.
  context_.sealed.push_back(
      {store_, session_, sealed->segment_id, oracle->token_count - 1, *oracle, may_go_});
}

void SimChat::Crash() {
  life_ = std::make_shared<int>(0);
  lacks_stream_ = false;
  DropHeld();
  EndStream();
  ForgetAsked();
  owner_ = nullptr;
  owner_is_over_ = false;
  has_rival_ = *takes_out_ > 0;
  protocol_ = nullptr;
  calls_ = false;
  ++context_.counts["compute node crashed"];
}

void SimChat::BreakStream() {
  if (stream_ == nullptr) return;
  stream_->Break(context_.random);
  ++context_.counts["connection broken"];
}

// As a client that ends its call.
void SimChat::EndStream() {
  DropStream();
  resend_.reset();
}

void SimChat::DropStream() {
  if (stream_ != nullptr) stream_->Cancel();
  stream_ = nullptr;
  attaching_ = false;
}

// ---- the stream ----

void SimChat::OnReply(const std::shared_ptr<pb::ChannelReply>& reply) {
  if (attaching_) {
    if (!reply->has_hello()) context_.Wrong("the first reply is no hello");
    return OnHello();
  }
  const OpSeq op_seq(reply->op_seq());
  if (reply->has_checkpointed()) {
    const bool ends = protocol_->OnCheckpointed(op_seq, rpc::FromProto(reply->checkpointed()));
    LookAtCheckpoint();
    if (ends) LetGo();
    return;
  }
  if (reply->has_stopping()) {
    ++context_.counts["told of a stop"];
    if (protocol_->OnStopping()) LetGo();
    return;
  }
  if (reply->has_failure() && op_seq != OpSeq()) {
    protocol_->OnFailure(op_seq, rpc::FailureStatus(reply->failure()));
    return LookAtFailure();
  }
  const RequestId request_id(reply->request_id());
  if (!TakeAnswer(request_id, reply)) return LoseStream();
  const auto found = expected_.find(request_id);
  if (found == expected_.end()) return;
  Expected expected = std::move(found->second);
  expected_.erase(found);
  CheckAnswer(expected);
}

// The node is about to stop, and has everything.
void SimChat::LetGo() {
  ++context_.counts["let go"];
  LoseStream();
}

// As a client that ends its call and comes again.
void SimChat::LoseStream() {
  EndStream();
  protocol_->OnStreamEnd();
  protocol_->MayRecover(Cancelled("the client ended its call"));
}

void SimChat::OnStreamEnd(const absl::Status& end) {
  if (end.ok()) context_.Wrong("session {}: its stream ended without a reason", session_.id);
  stream_ = nullptr;
  resend_.reset();
  if (std::exchange(attaching_, false)) {
    if (absl::IsFailedPrecondition(end)) ++context_.counts["stream refused"];
    // It did not wait for the channel for so long, or somebody else attached: a resume tells.
    return OnAttachFailed(end, absl::IsFailedPrecondition(end) || compute::IsLoss(end));
  }
  if (protocol_ == nullptr) return;
  protocol_->OnStreamEnd();
  protocol_->MayRecover(end);
  LookAtFailure();
}

// What was asked for is answered, and the session waits for its caller.
void SimChat::LookAtFailure() {
  if (protocol_->state() != State::kFailed) return;
  ForgetAsked();
  const absl::Status& why = protocol_->status();
  const bool has_io_faults = context_.node.has_io_faults();
  const bool lacks_entries =
      store_->is_damaged && Message(why).find("send the operation again") != std::string::npos;
  const bool may_be = lacks_entries || (absl::IsResourceExhausted(why) && MayLackRoom()) ||
                      (absl::IsAborted(why) && has_rival_) ||
                      (absl::IsNotFound(why) && others_deletion_ != nullptr) ||
                      ((absl::IsInternal(why) || absl::IsUnavailable(why)) && has_io_faults);
  if (!may_be) context_.Wrong("session {}: {}", session_.id, Message(why));
  const bool is_flash_full = Message(why).find("flash") != std::string::npos;
  ++context_.counts[is_flash_full ? "flash full" : "failed"];
}

// Brings the session back to what it was, or a step nearer.
void SimChat::GoOn() {
  if (is_gone_ || calls_ || attaching_) return;
  if (deletes_) return Delete();
  if (session_.id == SessionId()) return Create();
  if (store_ != nullptr && owner_is_over_) return Crash();
  if (protocol_ != nullptr && protocol_->state() == State::kFailed) {
    protocol_->Discard();
    LoseStream();
  }
  if (protocol_ != nullptr && protocol_->state() == State::kLost) {
    ++context_.counts["computed again"];
    protocol_->GoOn(stream_ != nullptr);
    if (stream_ != nullptr) BeginFrom(protocol_->attachment());
    return;
  }
  if (lacks_stream_) return OpenStream();
  if (stream_ == nullptr) return Attach();
  if (resend_) return Resend();
  if (!unsent_.empty() && protocol_->state() == State::kOpen) MakeRoom();
}

void SimChat::Resend() {
  const std::optional<pb::ChannelRequest> message = protocol_->NextToResend(*resend_);
  if (message) {
    ++context_.counts["sent again"];
    return stream_->Write(*message);
  }
  resend_.reset();
  if (protocol_->OnResent()) LetGo();
}

void SimChat::LookAtCheckpoint() {
  if (checkpoint_ == OpSeq()) return;
  const auto outcome = protocol_->CheckpointOutcome();
  if (!outcome || !outcome->ok()) return;
  acked_ = checkpoint_;
  saved_.erase(saved_.begin(), saved_.find(acked_));
  const std::shared_ptr<const kv::Oracle> oracle = saved_.begin()->second;
  checkpoint_ = OpSeq();
  ++context_.counts["checkpoint"];
  if (acked_ == protocol_->last_op_seq() && protocol_->replay_bytes() != 0) {
    context_.Wrong("session {} keeps {} bytes behind its last checkpoint", session_.id,
                   protocol_->replay_bytes());
  }
  recorded_.clear();
  const SegmentId sealed = (*outcome)->sealed_segment_id;
  if ((*outcome)->token_count != oracle->token_count) {
    context_.Wrong("session {} has a checkpoint of other tokens", session_.id);
  }
  // What was sealed before may be named again, where the reply to one without new tokens was lost.
  const bool is_new = oracle->token_count > segment_start_;
  if (seals_ && is_new && sealed == SegmentId()) {
    context_.Wrong("session {} was not sealed", session_.id);
  }
  if (sealed == SegmentId() || !is_new) {
    if (context_.random(4) != 0) recorded_ = oracle->CarriedPositions();
    return;
  }
  if (!seals_) context_.Wrong("session {} was sealed unasked", session_.id);
  ++context_.counts["sealed"];
  segments_.insert(sealed);
  context_.sealed.push_back({store_, session_, sealed, segment_start_, *oracle, may_go_});
  segment_start_ = oracle->token_count;
}

}  // namespace cairn::sim
