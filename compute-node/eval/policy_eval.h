// Evaluate runs one text under several retrieval policies and under full attention in memory, token
// by token side by side, and measures how far each policy is from full attention. The KV node is in
// this process, over memory: answers are those of the daemons, times are not measured.
//
// The first tokens are a prompt, computed at once; the others are fed one by one as if they had
// been generated, whatever the distributions say (teacher forcing).
//
// Threading:  one call at a time for a model.
// Errors:     INVALID_ARGUMENT an option out of range, or more tokens than the model's context;
//             those of Conversation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "compute-node/eval/policy_measure.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::eval {

struct EvalOptions : MeasureOptions {
  // Tokens of the prompt; at least one more must be there.
  std::int64_t prefill_tokens = 256;
};

// The results in the order of the policies. `tokens` are the prompt and those that are fed.
absl::StatusOr<std::vector<PolicyResult>> Evaluate(compute::Model& model,
                                                   std::span<const std::int32_t> tokens,
                                                   const EvalOptions& options,
                                                   const EvalProgress& progress);

}  // namespace cairn::eval
