#include "compute-node/eval/trace_rows.h"

#include <algorithm>

#include "compute-node/kernels/convert.h"

namespace cairn::eval {
namespace {

std::int64_t StepsBelow(const Trace& trace, std::int64_t position) {
  return std::lower_bound(trace.steps.begin(), trace.steps.end(), position) - trace.steps.begin();
}

}  // namespace

compute::ModelConfig ConfigOf(const Trace& trace) {
  compute::ModelConfig config;
  config.layer_count = std::ssize(trace.layers);
  config.kv_head_count = std::ssize(trace.kv_heads);
  config.head_count = config.kv_head_count * trace.group_size;
  config.head_dim = trace.head_dim;
  config.context_length = trace.token_count;
  return config;
}

TraceRows::TraceRows(const Trace& trace)
    : trace_(trace), prompt_step_count_(StepsBelow(trace, trace.prompt_count)) {}

std::optional<std::int64_t> TraceRows::QueryStep(std::int64_t position) const {
  const bool is_prompt = position < trace_.prompt_count;
  const std::int64_t begin = is_prompt ? 0 : prompt_step_count_;
  const std::int64_t end = is_prompt ? prompt_step_count_ : std::ssize(trace_.steps);
  if (begin == end) return std::nullopt;
  return std::clamp(StepsBelow(trace_, position), begin, end - 1);
}

std::vector<std::int64_t> TraceRows::StepsBehindPrompt() const {
  return {trace_.steps.begin() + prompt_step_count_, trace_.steps.end()};
}

compute::AttentionBatch TraceRows::Load(int layer, std::int64_t first, std::int64_t count) {
  const std::int64_t head_count = std::ssize(trace_.kv_heads);
  const std::size_t key_numbers = static_cast<std::size_t>(trace_.head_dim);
  const std::size_t group_numbers = key_numbers * static_cast<std::size_t>(trace_.group_size);
  const std::size_t rows = static_cast<std::size_t>(count * head_count);
  keys_.resize(rows * key_numbers);
  values_.resize(rows * key_numbers, 0.0F);
  queries_.resize(rows * group_numbers);
  out_.resize(rows * group_numbers);
  std::size_t row = 0;
  for (std::int64_t position = first; position < first + count; ++position) {
    const std::optional<std::int64_t> step = QueryStep(position);
    for (std::int64_t head = 0; head < head_count; ++head, ++row) {
      compute::F16ToF32(trace_.Key(layer, head, position),
                        std::span(keys_).subspan(row * key_numbers, key_numbers));
      const std::span<float> queries =
          std::span(queries_).subspan(row * group_numbers, group_numbers);
      if (step.has_value()) {
        compute::F16ToF32(trace_.Queries(*step, layer, head), queries);
      } else {
        std::fill(queries.begin(), queries.end(), 0.0F);
      }
    }
  }
  return {.layer = layer,
          .first_position = first,
          .token_count = count,
          .q = queries_,
          .k = keys_,
          .v = values_,
          .out = out_};
}

}  // namespace cairn::eval
