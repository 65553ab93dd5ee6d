#include "compute-node/command/trace_recorder.h"

#include <algorithm>

#include "compute-node/kernels/convert.h"

namespace cairn::cli {

TraceRecorder::TraceRecorder(compute::KvAttention& attention, std::int64_t query_from,
                             std::int64_t query_every, Trace& trace)
    : attention_(attention), query_from_(query_from), query_every_(query_every), trace_(trace) {
  for (std::int64_t at = query_from; at < trace.token_count; at += query_every) {
    trace.steps.push_back(static_cast<std::int32_t>(at));
  }
  trace.keys.resize(static_cast<std::size_t>(trace.key_value_count()));
  trace.queries.resize(static_cast<std::size_t>(trace.query_value_count()));
}

absl::Status TraceRecorder::Attend(const compute::AttentionBatch& batch) {
  const auto found = std::lower_bound(trace_.layers.begin(), trace_.layers.end(), batch.layer);
  if (found == trace_.layers.end() || *found != batch.layer) return attention_.Attend(batch);
  const std::int64_t layer = found - trace_.layers.begin();
  const std::int64_t dim = trace_.head_dim;
  const std::int64_t group_values = trace_.group_size * dim;
  const auto keep = [](std::span<const float> from, std::int64_t first,
                       std::span<const std::uint16_t> to) {
    // The trace is ours: its rows are const for its readers only.
    compute::F32ToF16(from.subspan(static_cast<std::size_t>(first), to.size()),
                      {const_cast<std::uint16_t*>(to.data()), to.size()});
  };
  for (std::int64_t token = 0; token < batch.token_count; ++token) {
    const std::int64_t position = batch.first_position + token;
    const std::int64_t since = position - query_from_;
    for (std::int64_t head = 0; head < std::ssize(trace_.kv_heads); ++head) {
      const std::int64_t kv_head = trace_.kv_heads[static_cast<std::size_t>(head)];
      keep(batch.k, (token * trace_.kv_head_count + kv_head) * dim,
           trace_.Key(layer, head, position));
      if (since < 0 || since % query_every_ != 0) continue;
      keep(batch.q, (token * trace_.kv_head_count + kv_head) * group_values,
           trace_.Queries(since / query_every_, layer, head));
    }
  }
  return attention_.Attend(batch);
}

}  // namespace cairn::cli
