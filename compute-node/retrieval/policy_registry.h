// The retrieval policies that there are: the one place that knows them by name.
//
// Threading:  functions of their arguments only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

struct PolicyKind {
  using Policy = std::unique_ptr<RetrievalPolicy>;

  std::string_view name;
  // Steps attend everything, so that it has no use for SelectionOptions.
  bool attends_everything = false;
  // SelectionOptions::select_ahead means something to it.
  bool may_select_ahead = false;
  // PolicyOptions::small_keys does.
  bool has_small_keys = false;
  // REQUIRES: options.Validate() is OK.
  absl::StatusOr<Policy> (*make)(const PolicyOptions& options) = nullptr;
};

std::span<const PolicyKind> PolicyKinds();
// Null for an unknown name.
const PolicyKind* FindPolicyKind(std::string_view name);
// "full, dynakv, ...", for messages.
std::string PolicyNames();

// INVALID_ARGUMENT for an unknown name, and the message lists the known ones; for options or a
// model that the policy does not take.
absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options);

}  // namespace cairn::compute
