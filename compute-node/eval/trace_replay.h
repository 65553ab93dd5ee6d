// Replay runs the keys and queries of a trace under several retrieval policies, without the model:
// the recorded layers and KV heads are the whole model. The trace's prompt is stored as a prompt,
// the tokens behind it one by one, in the sessions of the compute node over a KV node in this
// process, up to the last position whose queries were recorded. Measured are the positions behind
// the prompt whose queries were recorded; at the others a step attends with other queries
// (trace_rows.h), which moves clusters on but counts nowhere.
//
// The keys and queries stay those of the recorded run whatever a policy misses, and a layer selects
// by its own queries: of what another layer foresees a trace has nothing.
//
// Threading:  one thread.
// Errors:     INVALID_ARGUMENT a trace that no session can hold or that has nothing to measure, or
//             an option that has no meaning for a trace; those of the session.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/trace/trace.h"
#include "compute-node/eval/policy_measure.h"
#include "compute-node/kernels/ops.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::eval {

struct ReplayOptions : MeasureOptions {
  // How the model turned its keys, which a trace does not say. Needed where a policy learns from
  // queries of the prompt and there are some.
  std::optional<compute::RotaryPairs> rotary_pairs;
};

struct ReplayCounts {
  std::int64_t token_count = 0;         // that are stored: prompt and those behind it
  std::int64_t step_count = 0;          // that are measured
  std::int64_t prompt_query_count = 0;  // positions of the prompt whose queries were recorded
};
// REQUIRES: the trace was replayed.
ReplayCounts CountsOf(const Trace& trace);

// The results in the order of the policies, with the model's numbers of layers and KV heads.
absl::StatusOr<std::vector<PolicyResult>> Replay(const Trace& trace, const ReplayOptions& options,
                                                 ThreadPool& pool, const EvalProgress& progress);

}  // namespace cairn::eval
