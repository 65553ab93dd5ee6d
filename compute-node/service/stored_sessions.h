// What the service asks of the KV node about whole conversations.
//
// Threading:  any thread.
// Blocking:   for the KV node's answers.
// Errors:     those of KvNode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/session/options.h"

namespace cairn::compute {

// Labels that begin so are the daemon's own: no client may give one.
inline constexpr std::string_view kOwnLabelStart = "cairn:";
// Of a label that a client gives: INVALID_ARGUMENT if it is too long, or the daemon's own.
absl::Status CheckLabel(const std::string& label);

// Of a uid that a client gives: INVALID_ARGUMENT unless it has kUidBytes bytes or none.
absl::Status CheckUidBytes(const std::string& uid);

// NOT_FOUND if there is none, or another one has its number.
absl::StatusOr<SessionInfo> FindSession(KvNode& node, const SessionRef& ref);

// Whether the daemon's model and KV format made it.
bool IsUsable(const SessionInfo& session, const ModelIdentity& identity);

// A new conversation that begins with the first `token_count` tokens of `parent`, whose keys and
// values both have from then on. REQUIRES: 0 < token_count <= parent.token_count. Nobody has the
// parent open.
absl::StatusOr<SessionRef> ForkSession(KvNode& node, const SessionInfo& parent,
                                       std::int64_t token_count, const std::string& label);

}  // namespace cairn::compute
