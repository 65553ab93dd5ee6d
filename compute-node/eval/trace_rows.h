// TraceRows hands out a trace's keys and queries as a model's forward pass would: the recorded
// layers and KV heads are all that there is. Values are zeros, since a trace has none.
//
// A position whose queries were not recorded has those of the nearest later one that has some, of
// the same part (prompt, or behind it); behind the last of the part, those of the last. A part
// without any has zeros: of a prompt that is no query that anything could be learned from.
//
// Threading:  one thread.
// Ownership:  borrows the trace, which outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/trace/trace.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::eval {

// The shape of a model that has what was recorded and nothing else.
compute::ModelConfig ConfigOf(const Trace& trace);

class TraceRows {
 public:
  explicit TraceRows(const Trace& trace);

  // Of a recorded layer, counted from 0, tokens [first, first + count). Its rows live until the
  // next call.
  compute::AttentionBatch Load(int layer, std::int64_t first, std::int64_t count);

  // Whose queries a position has, as an index of trace.steps.
  std::optional<std::int64_t> QueryStep(std::int64_t position) const;

  // Of trace.steps those within the prompt, which come first.
  std::int64_t prompt_step_count() const { return prompt_step_count_; }
  // Positions behind the prompt whose queries were recorded.
  std::vector<std::int64_t> StepsBehindPrompt() const;

 private:
  const Trace& trace_;
  const std::int64_t prompt_step_count_;
  std::vector<float> queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> out_;
};

}  // namespace cairn::eval
