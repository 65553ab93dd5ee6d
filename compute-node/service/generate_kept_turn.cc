// The turns of clients that send their whole history each time: they begin with what is kept of it
// (kept_conversations.h), and what they leave is kept.
#include <utility>

#include "common/base/check.h"
#include "common/log/log.h"
#include "compute-node/service/generate_job.h"
#include "compute-node/service/stored_sessions.h"

namespace cairn::compute {
namespace {

// Tokens of a kept conversation with which somebody else went on.
constexpr std::int64_t kNotOurs = -1;

// Whether a conversation can be gone on with after a turn that ended so. Others may be damaged, and
// would fail each time.
bool IsWholeAfter(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool GenerateJob::LeavesWhole(const absl::Status& status) const {
  return IsWholeAfter(status) || !runtime_->model->CheckIntact().ok();  // which fails every turn
}

absl::Status GenerateJob::RunKeptTurn() {
  const std::vector<std::int32_t> prompt = turn_.prompt;
  if (const std::optional<KeptConversations::Beginning> kept = kept_->Take(prompt, *stop_)) {
    conversation_ = kept->session;
    turn_.prompt.erase(turn_.prompt.begin(), turn_.prompt.begin() + kept->token_count);
    held_token_count_ = kept->token_count;
    seals_ = kept->seals;
    absl::Status status = RunAndKeep(prompt);
    if (LeavesWhole(status)) return status;
    LogWarning("kept conversation session={} is given up: {}", conversation_.id, Message(status));
    kept_->Remove(kept->origin);
    if (first_token_time_.count() != 0) {
      if (!absl::IsDataLoss(status)) return status;
      return DataLoss("{}; it was kept of an earlier request and is deleted: ask again",
                      Message(status));
    }
    turn_.prompt = prompt;
    turn_.history.clear();
    held_token_count_ = 0;
    seals_ = {};
  }
  CAIRN_RETURN_IF_ERROR(OpenNew());
  return RunAndKeep(prompt);
}

absl::Status GenerateJob::RunAndKeep(const std::vector<std::int32_t>& prompt) {
  tokens_ = prompt;
  absl::Status status = RunConversation();
  CountHeldTokens(status);
  state_.open_conversations().Give(conversation_.id);
  if (held_token_count_ == kNotOurs) return status;
  if (!LeavesWhole(status)) held_token_count_ = 0;
  CAIRN_CHECK_LE(held_token_count_, std::ssize(tokens_));
  tokens_.resize(static_cast<std::size_t>(held_token_count_));
  kept_->Keep(conversation_, std::move(tokens_), seals_.CutAt(held_token_count_));
  return status;
}

void GenerateJob::CountHeldTokens(const absl::Status& status) {
  if (status.ok() || held_token_count_ == kNotOurs) return;
  // A checkpoint whose end nobody waited for is there or is not.
  const absl::StatusOr<SessionInfo> session =
      absl::IsUnavailable(status) ? status : FindSession(*runtime_->node, conversation_);
  held_token_count_ = session.ok() ? session->token_count : 0;
  if (held_token_count_ > std::ssize(tokens_)) held_token_count_ = kNotOurs;
}

absl::Status GenerateJob::CheckHeldTokens(Conversation& conversation) {
  const auto held = std::span(tokens_).first(static_cast<std::size_t>(held_token_count_));
  // An older copy of the store may have been put back, and gone on with to the same length.
  CAIRN_ASSIGN_OR_RETURN(const bool is_held, conversation.HasExactly(held, *stop_));
  if (is_held) return absl::OkStatus();
  held_token_count_ = kNotOurs;
  return Aborted(
      "conversation {} has {} tokens, not those that were kept: somebody went on with it; "
      "ask again",
      conversation_.id, conversation.token_count());
}

}  // namespace cairn::compute
