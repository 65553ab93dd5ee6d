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
#include "compute-node/session/entries/prompt_seals.h"

namespace cairn::compute {

// Stored before a wrapped state (policy_choice.h), with this added to its version: the
// conversation's seals, as PromptSeals packs them. Not of the policy `full`, and not where there
// are none.
inline constexpr std::int32_t kSealsVersion = 32;

struct StoredPolicy {
  PolicyChoice choice;
  // Where a fork of the session goes on as the session did, up to its last token.
  PromptSeals seals;
  // Of the policy alone.
  std::int32_t version = 0;
  std::string state;
  std::string random_state;
};

// How small keys of its conversation are made, as in SessionOptions; empty: it has none.
std::string SmallKeyBitsOf(const StoredPolicy& stored);

// What a checkpoint stores.
PutPolicyState WrapStoredPolicy(const PolicyChoice& choice, const PromptSeals& seals,
                                PutPolicyState own);

// REQUIRES: the session holds tokens.
absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvSession& session);

// Of a conversation that nobody has open. REQUIRES: it holds tokens.
absl::StatusOr<StoredPolicy> ReadStoredPolicy(KvNode& node, const SessionRef& ref);

// The policy that the session goes on with: its own, with what is stored of it, if it holds tokens,
// and then it must be what is asked; else what is asked, and for the rest `configured`.
absl::StatusOr<StoredPolicy> ChoosePolicy(KvSession& session, const PolicyRequest& request,
                                          const PolicyChoice& configured);

}  // namespace cairn::compute
