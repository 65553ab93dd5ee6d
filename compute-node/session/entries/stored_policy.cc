#include "compute-node/session/entries/stored_policy.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "compute-node/retrieval/kvswap/kvswap_policy.h"
#include "compute-node/retrieval/policy_registry.h"

namespace cairn::compute {

std::string SmallKeyBitsOf(const StoredPolicy& stored) {
  const PolicyKind* kind = FindPolicyKind(stored.choice.name);
  if (kind == nullptr || !kind->has_small_keys) return "";
  const std::optional<KeyCodeShape> shape = KvSwapPolicy::StoredShape(stored.version, stored.state);
  return shape.has_value() ? shape->ToString() : "";
}

PutPolicyState WrapStoredPolicy(const PolicyChoice& choice, const PromptSeals& seals,
                                PutPolicyState own) {
  PutPolicyState stored = WrapPolicyState(choice, std::move(own));
  if (choice.selects() && !seals.empty()) {
    stored.version += kSealsVersion;
    stored.state.insert(0, seals.Pack());
  }
  return stored;
}

absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvSession& session) {
  CAIRN_ASSIGN_OR_RETURN(PolicyStateReply reply,
                         Wait<PolicyStateReply>(session.StartRead(GetPolicyState())));
  const Attachment& attachment = session.attachment();
  StoredPolicy stored;
  std::string_view rest = reply.state;
  if (reply.version >= kSealsVersion) {
    reply.version -= kSealsVersion;
    std::optional<PromptSeals> seals = PromptSeals::Unpack(rest);
    if (!seals.has_value()) {
      return InvalidArgument("open conversation {}: stored policy state of {} bytes has no seals",
                             attachment.session_id, reply.state.size());
    }
    stored.seals = seals->CutAt(attachment.token_count);
  }
  // A fork's own segment begins where it was made.
  if (attachment.segment_start > 0) stored.seals.Add(attachment.segment_start);
  absl::StatusOr<UnwrappedPolicyState> unwrapped = UnwrapPolicyState(reply.version, rest);
  CAIRN_RETURN_IF_ERROR(
      Annotate(unwrapped.status(), fmt::format("open conversation {}", attachment.session_id)));
  stored.choice = std::move(unwrapped->choice);
  stored.version = unwrapped->version;
  stored.state = unwrapped->state;
  stored.random_state = std::move(reply.random_state);
  return stored;
}

absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvNode& node, const SessionRef& ref) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<KvSession> session, node.Open(ref));
  return ReadStoredPolicy(*session);
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
