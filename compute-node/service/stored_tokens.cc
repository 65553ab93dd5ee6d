#include "compute-node/service/stored_tokens.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace cairn::compute {

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

}  // namespace cairn::compute
