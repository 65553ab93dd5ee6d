// Reads the token ids of a conversation from the KV node.
//
// Threading:  any thread, but nobody else has the conversation open: reading makes a new epoch.
// Blocking:   for the KV node's answers.
// Errors:     those of KvNode::Open; DATA_LOSS if the store answers another number of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/session/served_model.h"

namespace cairn::compute {

// As of the last checkpoint.
absl::StatusOr<std::vector<std::int32_t>> ReadAllTokens(KvNode& node, const SessionRef& ref);

struct LastTokens {
  std::vector<std::int32_t> ids;
  std::string session_uid;  // of the conversation that has them
  ModelIdentity identity;   // and its identity
};
// The newest `count` of them, or all if they are fewer. `interrupt` ends a wait, see KvSession.
absl::StatusOr<LastTokens> ReadLastTokens(KvNode& node, const SessionRef& ref, std::int64_t count,
                                          Interrupt interrupt);

}  // namespace cairn::compute
