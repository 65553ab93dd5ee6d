#include "compute-node/kv_client/session_owner.h"

#include <utility>

#include "common/base/random_bytes.h"

namespace cairn::compute {

absl::Status CheckStore(std::string_view node, const std::string& store_now,
                        const std::string& expected, SessionId session) {
  if (expected.empty() || expected == store_now) return absl::OkStatus();
  return FailedPrecondition(
      "the KV node at {} has another store now: {} instead of {}, which holds session {}; nothing "
      "was read or written there: bring that store back, or begin a new conversation",
      node, ToHex(store_now), ToHex(expected), session);
}

absl::Status SessionOwner::MeetStore(std::string_view node, const std::string& store_now) {
  CAIRN_RETURN_IF_ERROR(CheckStore(node, store_now, store_id_, session_.id));
  store_met_ = store_now;
  // Its number alone may name another session elsewhere, and an answer may have been lost.
  if (session_.uid.empty()) store_id_ = store_now;
  return absl::OkStatus();
}

std::variant<OpenRequest, ResumeRequest> SessionOwner::NextAttempt(OpSeq acknowledged) {
  AttachAttempt attempt{owner_, ++attempt_count_};
  if (epoch_ == Epoch()) return OpenRequest{session_, std::move(attempt)};
  return ResumeRequest{session_.id, epoch_, std::move(attempt), acknowledged};
}

void SessionOwner::OnAttached(const Attachment& attachment) {
  store_id_ = store_met_;
  epoch_ = attachment.epoch;
  session_.uid = attachment.uid;
}

absl::Status SessionOwner::Explain(const absl::Status& failed) const {
  const bool resumes = epoch_ != Epoch();
  if (!resumes || !absl::IsFailedPrecondition(failed)) return failed;
  return Aborted("another owner opened the session: {}", Message(failed));
}

}  // namespace cairn::compute
