// A retrieval policy for tests of what surrounds policies: it has a name and a stored state of its
// own, claims to select by queries, and reads everything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compute-node/retrieval/baselines/full_policy.h"
#include "compute-node/session/conversation.h"

namespace cairn::compute {

inline constexpr std::int32_t kQueryPolicyVersion = 1234;
inline constexpr std::string_view kQueryPolicyMark = "of the policy: ";

class QueryPolicy : public FullPolicy {
 public:
  // What conversations with such policies do, as far as tests ask.
  struct Log {
    std::vector<PolicyOptions> made;
    std::vector<std::int64_t> passes;  // tokens of each pass
  };

  QueryPolicy(const PolicyOptions& options, Log& log)
      : FullPolicy({.name = "query"}, options), log_(log) {
    log_.made.push_back(options);
  }

  std::vector<FetchSlice> Select(const SelectionInput& input) const override {
    if (input.layer == 0) log_.passes.push_back(input.token_count);
    return FullPolicy::Select(input);
  }
  PutPolicyState SaveState() const override {
    PutPolicyState own = FullPolicy::SaveState();
    return {kQueryPolicyVersion + own.version, std::string(kQueryPolicyMark) + own.state};
  }
  absl::Status RestoreState(const StoredPolicyState& stored) override {
    if (stored.version == 0) return FullPolicy::RestoreState(stored);
    if (!stored.state.starts_with(kQueryPolicyMark)) {
      return InvalidArgument("'{}' is no state of this policy", stored.state);
    }
    StoredPolicyState own = stored;
    own.version -= kQueryPolicyVersion;
    own.state.remove_prefix(kQueryPolicyMark.size());
    return FullPolicy::RestoreState(own);
  }

 private:
  Log& log_;
};

// Those, under the name "query", and all others.
inline ConversationDeps WithQueryPolicy(ConversationDeps deps, QueryPolicy::Log& log) {
  deps.make_policy =
      [&log](std::string_view name,
             const PolicyOptions& options) -> absl::StatusOr<std::unique_ptr<RetrievalPolicy>> {
    if (name != "query") return MakePolicy(name, options);
    return std::make_unique<QueryPolicy>(options, log);
  };
  return deps;
}

}  // namespace cairn::compute
