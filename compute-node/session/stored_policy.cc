#include "compute-node/session/stored_policy.h"

#include <memory>
#include <utility>

namespace cairn::compute {

absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvSession& session) {
  CAIRN_ASSIGN_OR_RETURN(PolicyStateReply reply,
                         Wait<PolicyStateReply>(session.StartRead(GetPolicyState())));
  absl::StatusOr<UnwrappedPolicyState> unwrapped = UnwrapPolicyState(reply.version, reply.state);
  CAIRN_RETURN_IF_ERROR(Annotate(
      unwrapped.status(), fmt::format("open conversation {}", session.attachment().session_id)));
  StoredPolicy stored;
  stored.choice = std::move(unwrapped->choice);
  stored.version = unwrapped->version;
  stored.state = unwrapped->state;
  stored.random_state = std::move(reply.random_state);
  return stored;
}

absl::StatusOr<PolicyChoice> ReadPolicyChoice(KvNode& node, SessionId id) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<KvSession> session, node.Open(id));
  CAIRN_ASSIGN_OR_RETURN(StoredPolicy stored, ReadStoredPolicy(*session));
  return std::move(stored.choice);
}

absl::StatusOr<StoredPolicy> ChoosePolicy(KvSession& session, const PolicyRequest& request,
                                          const PolicyChoice& configured) {
  if (session.attachment().token_count == 0) {
    StoredPolicy nothing;
    nothing.choice = request.On(configured).Normalised();
    CAIRN_RETURN_IF_ERROR(Annotate(nothing.choice.selection.Validate(), "retrieval"));
    return nothing;
  }
  CAIRN_ASSIGN_OR_RETURN(StoredPolicy stored, ReadStoredPolicy(session));
  const PolicyChoice asked = request.On(stored.choice);
  CAIRN_RETURN_IF_ERROR(Annotate(asked.selection.Validate(), "retrieval"));
  if (!(asked == stored.choice)) {
    return InvalidArgument(
        "conversation {} uses {}, not {}: leave retrieval empty (no --policy, no --select), or "
        "start a new conversation",
        session.attachment().session_id, Describe(stored.choice, asked),
        Describe(asked, stored.choice));
  }
  return stored;
}

}  // namespace cairn::compute
