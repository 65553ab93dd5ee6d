// Traces that no model has made, for shapes that the model that ships with Cairn does not have.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/trace/trace.h"

namespace cairn::bench {

struct SyntheticOptions {
  std::int64_t layer_count = 2;
  std::int64_t kv_head_count = 2;
  std::int64_t group_size = 4;
  std::int64_t head_dim = 128;
  std::int64_t token_count = 8192;
  std::int64_t prompt_count = 4096;
  std::int64_t query_from = -1;  // -1: behind the prompt
  std::int64_t query_every = 4;
  std::uint64_t seed = 1;
};

// Keys are random points around topics, each layer and KV head for itself: one topic for every 64
// tokens; a text stays with a topic for 16 tokens on average, and comes back to an old one every
// second time; a topic moves a little whenever it is used, so that clusters age. Queries look for
// one topic for 8 tokens on average, then for another that has been there.
absl::StatusOr<Trace> SyntheticTrace(const SyntheticOptions& options);

// Every two recorded KV heads of a layer as one of twice the size: keys and queries side by side.
// Dependences over time and between keys are those of the recording. INVALID_ARGUMENT for an odd
// number of heads.
absl::StatusOr<Trace> PairHeads(const Trace& trace);

}  // namespace cairn::bench
