// TraceRecorder is a KvAttention that attends through another one and keeps the keys and queries
// that pass.
//
// Threading:  as Model::Forward: one call at a time.
// Ownership:  borrows the attention below; fills a Trace that the caller owns and has given its
//             shape, layers, heads, token count and prompt count.
#pragma once

#include <cstdint>

#include "common/trace/trace.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::cli {

class TraceRecorder : public compute::KvAttention {
 public:
  // Queries are kept of every `query_every`-th position from `query_from` on.
  TraceRecorder(compute::KvAttention& attention, std::int64_t query_from, std::int64_t query_every,
                Trace& trace);

  absl::Status Attend(const compute::AttentionBatch& batch) override;

 private:
  compute::KvAttention& attention_;
  const std::int64_t query_from_;
  const std::int64_t query_every_;
  Trace& trace_;
};

}  // namespace cairn::cli
