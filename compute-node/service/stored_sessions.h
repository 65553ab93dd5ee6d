// What the service asks of the KV node about whole conversations.
//
// Threading:  any thread.
// Blocking:   for the KV node's answers.
// Errors:     those of KvNode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/session/served_model.h"

namespace cairn::compute {

// Labels that begin so are the daemon's own: no client may give one.
inline constexpr std::string_view kOwnLabelStart = "cairn:";
// Of a label that a client gives: INVALID_ARGUMENT if it is too long, or the daemon's own.
absl::Status CheckLabel(const std::string& label);

// Of a uid that a client gives: INVALID_ARGUMENT unless it has kUidBytes bytes or none.
absl::Status CheckUidBytes(const std::string& uid);

// NOT_FOUND if there is none, or another one has its number.
absl::StatusOr<SessionInfo> FindSession(KvNode& node, const SessionRef& ref,
                                        ListDetail detail = ListDetail::kRows);

// How a new conversation is listed, and how long it stays.
struct NewConversation {
  std::string label;
  std::string creator;  // of Runtime
  SessionLifetime lifetime = SessionLifetime::kPermanent;
};

// A new conversation that begins with the first `token_count` tokens of `parent`, whose keys and
// values both have from then on. REQUIRES: 0 < token_count <= parent.token_count. Nobody has the
// parent open.
absl::StatusOr<SessionRef> ForkSession(KvNode& node, const SessionInfo& parent,
                                       std::int64_t token_count, const NewConversation& fork);

// Reading token ids makes a new epoch: nobody else has the conversation open. DATA_LOSS if the
// store answers another number of them.
//
// All, as of the last checkpoint.
absl::StatusOr<std::vector<std::int32_t>> ReadAllTokens(KvNode& node, const SessionRef& ref);

struct LastTokens {
  std::vector<std::int32_t> ids;
  std::string session_uid;  // of the conversation that has them
  ModelIdentity identity;   // and its identity
};
// The newest `count` of them, or all if they are fewer. `interrupt` ends a wait, see KvSession.
absl::StatusOr<LastTokens> ReadLastTokens(KvNode& node, const SessionRef& ref, std::int64_t count,
                                          Interrupt interrupt);

// Deletes a conversation that was not to stay. The KV node does it some time later if this fails.
void DeleteEphemeral(KvNode& node, const SessionRef& session);
// Deletes a conversation that holds nothing, because its first turn failed.
void DeleteIfEmpty(KvNode& node, const SessionRef& session);

// Deletes what an earlier process of this creator, which must have ended, has begun and not left to
// stay: ephemeral conversations, and those without a checkpoint. What cannot be deleted is logged:
// the KV node does it later.
void DeleteLeftBehind(KvNode& node, const std::string& creator);

}  // namespace cairn::compute
