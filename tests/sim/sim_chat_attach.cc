// How a chat comes to its session, and whether what it finds is right.
#include <chrono>
#include <utility>

#include "compute-node/kv_client/loss.h"
#include "tests/sim/sim_chat.h"

namespace cairn::sim {
namespace {

// It is not asked for long: nothing comes of it.
constexpr std::int64_t kTryOtherStoreOneIn = 16;
// Of attachments: the process ends before it has asked for the stream, or is late.
constexpr std::int64_t kLoseStreamOneIn = 32;
// Long enough for the node to give it up, now and then.
constexpr std::int64_t kRestsLongMax = 400;
constexpr std::int64_t kRestsShortMax = 30;

}  // namespace

void SimChat::Attach() {
  if (!context_.node.is_up()) return;
  if (owner_ == nullptr) {
    owner_ = std::make_unique<compute::SessionOwner>(session_, context_.RandomUid());
  }
  asked_store_ = &context_.node.store();
  if (asked_store_ != store_ && context_.random(kTryOtherStoreOneIn) != 0) return;
  const absl::Status same = owner_->MeetStore("sim", asked_store_->name);
  if (!same.ok()) {
    ++context_.counts["another store refused"];
    return OnAttachFailed(same, /*again=*/false);
  }
  calls_ = true;
  attempt_time_ = context_.now;
  asked_incarnation_ = context_.node.incarnation();
  was_deleted_ = others_deletion_ != nullptr && *others_deletion_;
  NoteAsked();
  const OpSeq acknowledged = protocol_ != nullptr ? protocol_->acknowledged() : OpSeq();
  const auto attempt = owner_->NextAttempt(acknowledged);
  context_.node.Call<Attachment>(
      [attempt](kv::Engine& engine, kv::Callback<Attachment> done) {
        if (const auto* open = std::get_if<OpenRequest>(&attempt)) {
          engine.OpenSession(kDefaultApp, *open, std::move(done));
        } else {
          engine.ResumeSession(kDefaultApp, std::get<ResumeRequest>(attempt), std::move(done));
        }
      },
      Taking(ForThisLife(&SimChat::OnAttachment)));
}

void SimChat::OnAttachment(const absl::StatusOr<Attachment>& attachment) {
  calls_ = false;
  if (!attachment.ok()) {
    const absl::Status status = owner_->Explain(attachment.status());
    return OnAttachFailed(status, compute::IsLoss(status));
  }
  asked_time_ = attempt_time_;
  owner_->OnAttached(*attachment);
  attachment_ = *attachment;
  segments_.insert(attachment_.segment_id);
  attachment_time_ = context_.now;
  lacks_stream_ = true;
  if (!LosesStream()) OpenStream();
}

bool SimChat::LosesStream() {
  const std::int64_t dice = context_.random(kLoseStreamOneIn);
  if (dice > 1) return false;
  ++context_.counts[dice == 0 ? "died before its stream" : "late with its stream"];
  if (dice == 0) Crash();
  rests_ = context_.random(context_.random(4) == 0 ? kRestsLongMax : kRestsShortMax);
  const std::int64_t meanwhile = context_.random(8);
  if (meanwhile < 2) OpenBySomebodyElse();
  if (meanwhile == 2) DeleteBySomebodyElse();
  return true;
}

// By the same connection.
void SimChat::OpenStream() {
  lacks_stream_ = false;
  if (!context_.node.is_up() || context_.node.incarnation() != asked_incarnation_) return;
  came_too_late_ = WaitedTooLong() || *others_epoch_ > attachment_.epoch;
  attaching_ = true;
  const auto for_this_stream = [this](auto on_event) {
    return [this, life = std::weak_ptr<int>(life_), on_event](const auto& value) {
      if (!life.expired()) (this->*on_event)(value);
    };
  };
  arena_ = uses_arena_ ? NewArenaMap() : nullptr;
  lease_returns_ = std::make_shared<compute::LeaseReturns>();
  stream_ =
      SimStream::Open(context_.node, context_.wire, attachment_.session_id, attachment_.epoch,
                      {for_this_stream(&SimChat::OnReply), for_this_stream(&SimChat::OnStreamEnd),
                       /*uses_arena=*/uses_arena_});
}

void SimChat::OnAttachFailed(const absl::Status& status, bool again) {
  if (again) return;
  ++context_.counts["not attached"];
  const bool may_vanish = absl::IsNotFound(status) && asked_store_ == store_;
  if (may_vanish && (NoteIfDeleted() || NoteIfSuperseded() || NoteIfAbandoned())) return;
  const bool is_refused = absl::IsAborted(status) || absl::IsFailedPrecondition(status);
  const bool is_elsewhere = asked_store_ != store_;
  // An attempt of a process that has ended may come later than this one's.
  const bool may_be = NoteIfOlder(status) || (absl::IsResourceExhausted(status) && MayLackRoom()) ||
                      (is_refused && has_rival_) ||
                      (is_elsewhere && (is_refused || absl::IsNotFound(status)));
  if (!may_be) context_.Wrong("session {}: attach: {}", session_.id, Message(status));
  owner_is_over_ = true;  // whoever asks next is another
  if (protocol_ == nullptr) return;
  protocol_->FailRecovery(status);
  ForgetAsked();
}

void SimChat::ForgetAsked() {
  expected_.clear();
  unsent_.clear();
  carried_to_come_ = 0;
  checkpoint_ = OpSeq();
}

void SimChat::CheckAttachment(const Attachment& attachment) {
  if (attachment.uid != session_.uid || asked_store_ != store_) {
    context_.Wrong("session {}: another session was attached", session_.id);
  }
  if (attachment.epoch <= last_epoch_) {
    context_.Wrong("session {}: epoch {} behind {}", session_.id, attachment.epoch, last_epoch_);
  }
  last_epoch_ = attachment.epoch;
  if (supersession_ != nullptr) SettleSupersession(attachment);
  const auto found = saved_.find(attachment.op_seq);
  if (attachment.op_seq < acked_) {
    context_.Wrong("session {}: checkpoint {} was acknowledged, {} is stored", session_.id, acked_,
                   attachment.op_seq);
  } else if (found == saved_.end()) {
    context_.Wrong("session {} is at operation {}", session_.id, attachment.op_seq);
  } else if (attachment.token_count != found->second->token_count) {
    context_.Wrong("session {} has {} tokens, not {}", session_.id, attachment.token_count,
                   found->second->token_count);
  }
}

// Whether the node must have ended the attachment: it looks for them every 100 ms.
bool SimChat::WaitedTooLong() const {
  const auto wait_max = kv::EngineOptions().channel_wait_max + std::chrono::milliseconds(100);
  return context_.node.last_run() - attachment_time_ >= wait_max;
}

void SimChat::OpenBySomebodyElse() {
  if (!IsServed()) return;
  ++context_.counts["opened by somebody else"];
  const AttachAttempt attempt{context_.RandomUid(), 1};
  const bool closes = context_.random(2) == 0;
  // That one never comes with its stream.
  const auto answer = [&node = context_.node, session = session_.id, others_epoch = others_epoch_,
                       closes](const absl::StatusOr<Attachment>& attachment) {
    if (!attachment.ok()) return;
    *others_epoch = attachment->epoch;
    if (!closes) return;
    node.Call<std::monostate>(
        [session, epoch = attachment->epoch](kv::Engine& engine,
                                             kv::Callback<std::monostate> done) {
          engine.CloseSession(kDefaultApp, session, epoch, std::move(done));
        },
        [](const absl::StatusOr<std::monostate>&) {});
  };
  context_.node.Call<Attachment>(
      [request = OpenRequest{session_, attempt}](kv::Engine& engine,
                                                 kv::Callback<Attachment> done) {
        engine.OpenSession(kDefaultApp, request, std::move(done));
      },
      TakenBeside<Attachment>(answer));
}

void SimChat::DeleteBySomebodyElse() {
  if (!IsServed()) return;
  ++context_.counts["deleted by somebody else"];
  *may_go_ = true;
  if (others_deletion_ == nullptr) others_deletion_ = std::make_shared<bool>(false);
  const auto answer = [deletion = others_deletion_](const absl::StatusOr<std::monostate>& deleted) {
    if (deleted.ok()) *deletion = true;
  };
  context_.node.Call<std::monostate>(
      [session = session_](kv::Engine& engine, kv::Callback<std::monostate> done) {
        engine.DeleteSession(kDefaultApp, session, std::move(done));
      },
      TakenBeside<std::monostate>(answer));
}

bool SimChat::NoteIfDeleted() {
  is_gone_ = is_gone_ || others_deletion_ != nullptr;
  return is_gone_;
}

void SimChat::OnHello() {
  attaching_ = false;
  if (came_too_late_) context_.Wrong("session {} got its stream too late", session_.id);
  if (was_deleted_) context_.Wrong("session {} was deleted, and is there", session_.id);
  if (!asked_beside_rival_) has_rival_ = false;
  is_older_ = false;
  may_be_unknown_ = false;
  CheckAttachment(attachment_);
  if (!context_.wrong.ok()) return;
  if (protocol_ == nullptr) {
    protocol_ = std::make_unique<compute::SessionProtocol>(replay_bytes_max_, attachment_,
                                                           std::make_shared<compute::FetchClock>());
    return BeginFrom(attachment_);
  }
  const bool discards = protocol_->discards();
  const bool resends = protocol_->OnAttached(attachment_);
  if (discards) return BeginFrom(attachment_);
  const OpSeq covered = attachment_.op_seq;
  // What they asked about was stored over meanwhile: they are asked again ahead of all else.
  for (auto& [id, read] : expected_) {
    if (read.after < covered) read.oracle = saved_.at(covered);
  }
  LookAtCheckpoint();
  // One that nobody waited for any more may be stored, too.
  acked_ = covered;
  saved_.erase(saved_.begin(), saved_.find(covered));
  segment_start_ = attachment_.segment_start;
  ++context_.counts["resumed"];
  if (resends) resend_ = compute::ResendCursor{covered, RequestId()};
  if (protocol_->state() == State::kLost) ForgetAsked();
}

// What is stored is all that there is.
void SimChat::BeginFrom(const Attachment& attachment) {
  const std::shared_ptr<const kv::Oracle> oracle = saved_.at(attachment.op_seq);
  now_ = *oracle;
  shared_now_ = oracle;
  saved_ = {{attachment.op_seq, oracle}};
  acked_ = attachment.op_seq;
  checkpoint_ = OpSeq();
  segment_start_ = attachment.segment_start;
  recorded_.clear();
  expected_.clear();
  carried_to_come_ = context_.operations.layout().layer_count;
  for (std::int32_t layer = 0; layer < carried_to_come_; ++layer) Ask(GetCarried{layer});
  ++context_.counts["opened"];
}

}  // namespace cairn::sim
