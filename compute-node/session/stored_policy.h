// Which policy a session has, and what its last checkpoint stored of it: the one place where a
// policy's own state is told from what the session stores with it.
//
// Threading:  one thread, the session's.
// Blocking:   for the KV node's answer.
// Errors:     INVALID_ARGUMENT a stored state that cannot be read, or another policy than the
//             session's is asked for; those of KvSession.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/policy_choice.h"

namespace cairn::compute {

struct StoredPolicy {
  PolicyChoice choice;
  // Of the policy alone.
  std::int32_t version = 0;
  std::string state;
  std::string random_state;
};

// REQUIRES: the session holds tokens.
absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvSession& session);

// The policy of a conversation that nobody has open. REQUIRES: it holds tokens.
absl::StatusOr<PolicyChoice> ReadPolicyChoice(KvNode& node, SessionId id);

// The policy that the session goes on with: its own, with what is stored of it, if it holds tokens,
// and then it must be what is asked; else what is asked, and for the rest `configured`.
absl::StatusOr<StoredPolicy> ChoosePolicy(KvSession& session, const PolicyRequest& request,
                                          const PolicyChoice& configured);

}  // namespace cairn::compute
