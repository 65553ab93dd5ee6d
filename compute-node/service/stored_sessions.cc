#include "compute-node/service/stored_sessions.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/log/log.h"

namespace cairn::compute {

absl::Status CheckLabel(const std::string& label) {
  if (std::ssize(label) > kLabelBytesMax) {
    return InvalidArgument("label has {} bytes: at most {}", label.size(), kLabelBytesMax);
  }
  if (label.starts_with(kOwnLabelStart)) {
    return InvalidArgument("label '{}' begins with '{}': such labels are the daemon's own", label,
                           kOwnLabelStart);
  }
  return absl::OkStatus();
}

absl::Status CheckUidBytes(const std::string& uid) {
  if (uid.empty() || std::ssize(uid) == kUidBytes) return absl::OkStatus();
  return InvalidArgument("conversation_uid has {} bytes: it must have {}, or none", uid.size(),
                         kUidBytes);
}

absl::StatusOr<SessionInfo> FindSession(KvNode& node, const SessionRef& ref, ListDetail detail) {
  absl::StatusOr<SessionInfo> session = node.Get(ref, detail);
  const bool is_another = absl::IsFailedPrecondition(session.status());
  if (!is_another && !absl::IsNotFound(session.status())) return session;
  return NotFound("there is no conversation {}: `cairn sessions list` lists them", ref.id);
}

absl::StatusOr<SessionRef> ForkSession(KvNode& node, const SessionInfo& parent,
                                       std::int64_t token_count, const NewConversation& fork) {
  CAIRN_CHECK(token_count > 0 && token_count <= parent.token_count);
  const SessionRef parent_ref = RefTo(parent);
  CAIRN_ASSIGN_OR_RETURN(const SealedSegment sealed, node.Seal(parent_ref));
  CreateSession create;
  create.parent = parent_ref;
  create.key = parent.key;
  create.layout = parent.layout;
  create.parent_segment_id = sealed.segment_id;
  create.parent_token_count = token_count;
  create.label = fork.label;
  create.creator = fork.creator;
  create.lifetime = fork.lifetime;
  return node.Create(create);
}

absl::StatusOr<std::vector<std::int32_t>> ReadAllTokens(KvNode& node, const SessionRef& ref) {
  CAIRN_ASSIGN_OR_RETURN(
      LastTokens tokens,
      ReadLastTokens(node, ref, std::numeric_limits<std::int64_t>::max(), nullptr));
  return std::move(tokens.ids);
}

absl::StatusOr<LastTokens> ReadLastTokens(KvNode& node, const SessionRef& ref, std::int64_t count,
                                          Interrupt interrupt) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<KvSession> session, node.Open(ref));
  session->SetInterrupt(std::move(interrupt));
  const Attachment& attachment = session->attachment();
  const std::int64_t stored = attachment.token_count;
  const std::int64_t first = stored - std::min(stored, count);
  LastTokens out{.ids = {}, .session_uid = attachment.uid, .identity = IdentityOf(attachment)};
  std::vector<std::int32_t>& tokens = out.ids;
  while (first + std::ssize(tokens) < stored) {
    const std::int64_t next = first + std::ssize(tokens);
    CAIRN_ASSIGN_OR_RETURN(
        const TokensReply reply,
        Wait<TokensReply>(session->StartRead(GetTokens{next, kGetTokensCountMax})));
    if (reply.token_ids.empty() || next + std::ssize(reply.token_ids) > stored) {
      return DataLoss("conversation {} has {} tokens, but the store answers {} behind {}", ref.id,
                      stored, reply.token_ids.size(), next);
    }
    tokens.insert(tokens.end(), reply.token_ids.begin(), reply.token_ids.end());
  }
  return out;
}

void DeleteEphemeral(KvNode& node, const SessionRef& session) {
  const absl::Status deleted = node.Delete(session);
  if (deleted.ok() || absl::IsNotFound(deleted)) return;
  LogWarning("ephemeral session={} is the KV node's to delete: {}", session.id, Message(deleted));
}

void DeleteIfEmpty(KvNode& node, const SessionRef& session) {
  const absl::StatusOr<SessionInfo> found = FindSession(node, session);
  if (!found.ok() || found->token_count != 0) return;
  const absl::Status deleted = node.Delete(session);
  if (!deleted.ok()) LogWarning("delete empty session={}: {}", session.id, Message(deleted));
}

void DeleteLeftBehind(KvNode& node, const std::string& creator) {
  const absl::StatusOr<std::vector<SessionInfo>> sessions = node.List(ListDetail::kRows);
  if (!sessions.ok()) {
    LogWarning("conversations that were left behind: {}", Message(sessions.status()));
    return;
  }
  for (const SessionInfo& session : *sessions) {
    // One that is attached is its KV node's to end: it may not have heard that the process is gone.
    const bool is_left = session.creator == creator && !session.attached &&
                         session.lifetime != SessionLifetime::kPermanent;
    if (!is_left) continue;
    const absl::Status deleted = node.Delete(RefTo(session));
    LogInfo("delete session={} reason=\"an earlier process left it behind\" status=\"{}\"",
            session.session_id, deleted.ok() ? "OK" : Message(deleted));
  }
}

}  // namespace cairn::compute
