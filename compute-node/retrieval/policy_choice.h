// PolicyChoice: which retrieval policy a conversation has, and its options. Both are fixed when the
// conversation is made, and stored with the policy's state, so that every later turn and every fork
// goes on with them.
//
// Stored form: the state of the policy `full` is stored as it is (versions below
// kWrappedPolicyVersion are its own). That of any other policy is wrapped, with
// kForeseeingPolicyVersion if it selects ahead, else kEstimatingPolicyVersion if it estimates
// clusters, else kWrappedPolicyVersion, and these bytes, numbers in little-endian order:
//   name: 1 byte for its length, then its bytes
//   select_percent: IEEE double; select_tokens_min, select_tokens_max, cluster_target_entries: 64
//   bits each, signed; seed: 64 bits
//   not with kWrappedPolicyVersion: estimate_percent: IEEE double, with kEstimatingPolicyVersion
//   above 0
//   version of the policy's own state: 32 bits, signed
//   the policy's own state: the rest
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/retrieval/selection_options.h"

namespace cairn::compute {

inline constexpr std::int32_t kWrappedPolicyVersion = 16;
inline constexpr std::int32_t kEstimatingPolicyVersion = 17;
inline constexpr std::int32_t kForeseeingPolicyVersion = 18;
inline constexpr std::int64_t kPolicyNameBytesMax = 32;

struct PolicyChoice {
  std::string name = "full";
  SelectionOptions selection;

  // Whether a token attends less than everything.
  bool selects() const;
  // INVALID_ARGUMENT for a name that no PolicyKind has, or what SelectionOptions says.
  absl::Status Validate() const;
  // Without select_ahead where the policy has no use for it: none is stored then.
  PolicyChoice Normalised() const;
  // A policy that attends everything has no use for the options, and none are stored for it: they
  // do not count.
  friend bool operator==(const PolicyChoice& a, const PolicyChoice& b) {
    return a.name == b.name &&
           (!a.selects() || a.Normalised().selection == b.Normalised().selection);
  }
};

// What somebody asks of a conversation's policy: only what is set. A conversation that holds tokens
// must have it already; what is not set is as it has it, or as configured in a new one.
struct PolicyRequest {
  std::optional<std::string> name = std::nullopt;
  std::optional<double> select_percent = std::nullopt;
  std::optional<std::int64_t> select_tokens_min = std::nullopt;
  std::optional<std::int64_t> select_tokens_max = std::nullopt;
  std::optional<std::int64_t> cluster_target_entries = std::nullopt;
  std::optional<std::uint64_t> seed = std::nullopt;
  std::optional<double> estimate_percent = std::nullopt;
  std::optional<bool> select_ahead = std::nullopt;

  // Asks for all of a choice.
  static PolicyRequest Exactly(const PolicyChoice& choice);

  // `choice` with what is set here.
  PolicyChoice On(PolicyChoice choice) const;
  // What is set here, and for the rest what is set in `other`.
  PolicyRequest Or(const PolicyRequest& other) const;
  friend bool operator==(const PolicyRequest&, const PolicyRequest&) = default;
};

// "policy dynakv with select_percent 3", and those of the other options that differ from `other`'s.
std::string Describe(const PolicyChoice& choice, const PolicyChoice& other);

// What the KV node stores for a policy's own state. REQUIRES: the name has 1 to
// kPolicyNameBytesMax bytes.
PutPolicyState WrapPolicyState(const PolicyChoice& choice, PutPolicyState own);

// The reverse. `state` views what was given.
struct UnwrappedPolicyState {
  PolicyChoice choice;
  std::int32_t version = 0;
  std::string_view state;
};
// INVALID_ARGUMENT for what WrapPolicyState does not write. That the name is known is not checked.
absl::StatusOr<UnwrappedPolicyState> UnwrapPolicyState(std::int32_t version,
                                                       std::string_view state);

}  // namespace cairn::compute
