#include "compute-node/service/kept_history.h"

#include <span>
#include <utility>

#include "common/base/check.h"
#include "compute-node/service/stored_sessions.h"

namespace cairn::compute {
namespace {

// Tokens of a kept conversation with which somebody else went on.
constexpr std::int64_t kNotOurs = -1;

}  // namespace

absl::Status KeptHistory::Check(Conversation& conversation, const StopSignal& stop) {
  const auto held = std::span(tokens_).first(static_cast<std::size_t>(held_count_));
  // An older copy of the store may have been put back, and gone on with to the same length.
  CAIRN_ASSIGN_OR_RETURN(const bool is_held, conversation.HasExactly(held, stop));
  if (is_held) return absl::OkStatus();
  held_count_ = kNotOurs;
  return Aborted(
      "conversation {} has {} tokens, not those that were kept: somebody went on with it; "
      "ask again",
      conversation.id(), conversation.token_count());
}

void KeptHistory::NoteEnd(const Conversation& conversation, const absl::Status& status) {
  seals_ = conversation.seals();
  if (status.ok()) held_count_ = conversation.token_count();
}

void KeptHistory::CountHeld(KvNode& node, const SessionRef& conversation,
                            const absl::Status& status) {
  if (status.ok() || held_count_ == kNotOurs) return;
  // A checkpoint whose end nobody waited for is there or is not.
  const absl::StatusOr<SessionInfo> session =
      absl::IsUnavailable(status) ? status : FindSession(node, conversation);
  held_count_ = session.ok() ? session->token_count : 0;
  if (held_count_ > std::ssize(tokens_)) held_count_ = kNotOurs;
}

void KeptHistory::Keep(PrefixStore& kept, const SessionRef& conversation, bool whole) {
  if (held_count_ == kNotOurs) return;
  if (!whole) held_count_ = 0;
  CAIRN_CHECK_LE(held_count_, std::ssize(tokens_));
  tokens_.resize(static_cast<std::size_t>(held_count_));
  kept.Keep(conversation, std::move(identity_), std::move(tokens_), seals_.CutAt(held_count_));
}

}  // namespace cairn::compute
