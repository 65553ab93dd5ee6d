// How one chat computes another one's tokens again and takes its place, and what both show then.
#include <algorithm>
#include <utility>

#include "tests/sim/sim_chat.h"

namespace cairn::sim {
namespace {

constexpr std::int64_t kTokensAtOnceMax = 8;
constexpr std::int64_t kRestsAfterMax = 40;
// Of the repeated chat, while it is computed again.
constexpr std::int64_t kRepeatRestsMax = 150;
// Steps in which such a call is mostly done.
constexpr std::int64_t kCallStepsMax = 150;

}  // namespace

SimChat::SimChat(SimContext& context, const std::shared_ptr<SimChat>& repeated)
    : SimChat(context, std::optional<SimSealed>()) {
  repeated_ = repeated;
  repeats_ = repeated->saved_.begin()->second->truth;
  // Mostly of a process that does nothing else meanwhile.
  if (context.random(4) != 0) repeated->Close();
  repeated->rests_ = context.random(kRepeatRestsMax);
}

bool SimChat::MayBeRepeated() const {
  const std::shared_ptr<SimChat> replacement = replacement_.lock();
  const bool has_none = replacement == nullptr || replacement->is_gone_;
  return has_none && store_ != nullptr && !is_gone_ && !deletes_ && !is_older_ &&
         !IsReplacement() && supersession_ == nullptr && saved_.size() == 1 &&
         saved_.begin()->second->token_count > 0;
}

// Whether it may be gone though nobody took its place.
bool SimChat::MayVanish() const {
  return is_gone_ || deletes_ || is_older_ || others_deletion_ != nullptr ||
         lifetime_ != SessionLifetime::kPermanent;
}

bool SimChat::IsReady() const {
  return store_ != nullptr && saved_.size() == 1 && checkpoint_ == OpSeq() && unsent_.empty() &&
         saved_.begin()->second->token_count == std::ssize(repeats_) && !is_older_;
}

// As far as it is not there yet.
void SimChat::Repeat() {
  for (std::int64_t i = context_.random(kTokensAtOnceMax); i >= 0; --i) {
    if (now_.token_count == std::ssize(repeats_)) return TakeCheckpoint();
    Decode(repeats_[static_cast<std::size_t>(now_.token_count)]);
  }
}

// Whether it does so now, or gives up.
bool SimChat::TakesPlace() {
  if (!IsReplacement() || calls_ || deletes_ || is_gone_ || !IsReady()) return false;
  if (!context_.node.is_up() || &context_.node.store() != store_) return false;
  if (context_.random(4) != 0) return false;
  const std::shared_ptr<SimChat> repeated = repeated_.lock();
  // With the same numbers nobody could tell which of the two an older copy of the store shows.
  const bool is_there = repeated != nullptr && !repeated->is_gone_ && !repeated->deletes_ &&
                        !repeated->is_older_ && repeated->store_ == store_ &&
                        !repeated->saved_.contains(acked_);
  // It may have gone on with others meanwhile: then it is refused.
  const bool has_same_tokens = is_there && (repeated->saved_.size() != 1 ||
                                            repeated->saved_.begin()->second->truth == repeats_);
  if (has_same_tokens || (is_there && context_.random(2) == 0)) {
    Supersede(*repeated);
  } else {
    Delete();
  }
  return true;
}

bool SimChat::MayHaveTakenPlace() const {
  return IsReplacement() && supersession_ != nullptr && supersession_->was_done != false;
}

void SimChat::Supersede(SimChat& repeated) {
  if (!MayHaveTakenPlace()) {
    supersession_ = std::make_shared<SimSupersession>();
    supersession_->replacement = session_;
    supersession_->op_seq = acked_;
    supersession_->oracle = saved_.at(acked_);
    supersession_->segments = segments_;
  }
  // A call that is repeated behind that does nothing.
  if (!supersession_->is_settled) repeated.supersession_ = supersession_;
  *may_go_ = true;
  *repeated.may_go_ = true;
  // It is refused while somebody is attached to one of them.
  if (context_.random(8) != 0) Close();
  if (context_.random(8) != 0) repeated.Close();
  rests_ = context_.random(kRestsAfterMax);
  repeated.rests_ = context_.random(kRestsAfterMax);
  if (context_.random(3) == 0) context_.node_dies_in = 1 + context_.random(kCallStepsMax);
  calls_ = true;
  ++supersession_->call_count;
  ++supersession_->unanswered_count;
  const auto answer = [this, life = std::weak_ptr<int>(life_),
                       it = supersession_](const absl::StatusOr<std::monostate>& done) {
    --it->unanswered_count;
    if (done.ok()) it->was_done = true;
    if (!life.expired()) OnSuperseded(done);
  };
  context_.node.Call<std::monostate>(
      [request = Supersession{repeated.session_, session_}](kv::Engine& engine,
                                                            kv::Callback<std::monostate> done) {
        engine.SupersedeSession(kDefaultApp, request, std::move(done));
      },
      TakenBeside<std::monostate>(repeated.TakenBeside<std::monostate>(answer)));
}

void SimChat::OnSuperseded(const absl::StatusOr<std::monostate>& superseded) {
  calls_ = false;
  if (superseded.ok()) {
    is_gone_ = true;
    return;
  }
  const absl::Status& why = superseded.status();
  const std::shared_ptr<SimChat> repeated = repeated_.lock();
  const bool may_vanish = MayVanish() || repeated == nullptr || repeated->MayVanish();
  const bool may_be = absl::IsUnavailable(why) || absl::IsFailedPrecondition(why) ||
                      (absl::IsNotFound(why) && may_vanish) ||
                      (absl::IsResourceExhausted(why) && context_.was_metadata_disk_full);
  if (!may_be) context_.Wrong("session {} takes no place: {}", session_.id, Message(why));
  if (absl::IsFailedPrecondition(why)) ++context_.counts["supersede refused"];
}

void SimChat::NoteAsked() {
  asked_ = {};
  if (supersession_ == nullptr) return;
  asked_.supersession = supersession_;
  asked_.was_done = supersession_->was_done == true;
  asked_.call_count = supersession_->unanswered_count == 0 ? supersession_->call_count : -1;
}

// Of a session that is there: what it shows says whether another one has taken its place, or it
// another one's.
void SimChat::SettleSupersession(const Attachment& attachment) {
  const std::shared_ptr<SimSupersession> it = supersession_;
  const bool is_done = !IsReplacement() && ShowsReplacement(attachment);
  const bool knew = asked_.supersession == it && asked_.was_done;
  if (is_done ? it->was_done == false : knew) {
    return context_.Wrong("session {}: whether it was superseded by session {} has changed",
                          session_.id, it->replacement.id);
  }
  if (!is_done) {
    // A call that came behind the attachment may be done by now.
    if (asked_.supersession != it || asked_.call_count != it->call_count) return;
    it->was_done = false;
    ++context_.counts["not superseded"];
  } else {
    const bool is_same = std::any_of(saved_.begin(), saved_.end(), [&](const auto& own) {
      return own.second->truth == it->oracle->truth;
    });
    if (!is_same) context_.Wrong("session {} has got other tokens", session_.id);
    if (protocol_ != nullptr) context_.Wrong("session {} goes on as what it was", session_.id);
    it->was_done = true;
    it->is_settled = true;
    saved_ = {{it->op_seq, it->oracle}};
    acked_ = it->op_seq;
    ++context_.counts["superseded"];
  }
  supersession_ = nullptr;
  may_go_ = std::make_shared<bool>(MayVanish());
}

bool SimChat::ShowsReplacement(const Attachment& attachment) const {
  const auto is_at = [&](OpSeq op_seq, const kv::Oracle& oracle) {
    return attachment.op_seq == op_seq && attachment.token_count == oracle.token_count;
  };
  if (!is_at(supersession_->op_seq, *supersession_->oracle)) return false;
  const auto own = saved_.find(attachment.op_seq);
  if (own == saved_.end() || !is_at(own->first, *own->second)) return true;
  // The same numbers in both: the chain tells. The last segment may have come with a seal.
  const auto is_of = [&](const std::set<SegmentId>& segments) {
    return segments.contains(attachment.segment_id) ||
           segments.contains(attachment.parent_segment_id);
  };
  if (is_of(supersession_->segments)) return true;
  return !is_of(segments_) && !store_->StoredOpSeq(supersession_->replacement.uid);
}

bool SimChat::NoteIfSuperseded() {
  if (!MayHaveTakenPlace()) return false;
  if (!MayVanish()) supersession_->was_done = true;
  is_gone_ = true;
  return true;
}

void SimChat::AddReplacement(std::map<OpSeq, std::shared_ptr<const kv::Oracle>>& saved) const {
  if (IsReplacement() || supersession_ == nullptr || supersession_->was_done == false) return;
  saved.emplace(supersession_->op_seq, supersession_->oracle);
}

}  // namespace cairn::sim
