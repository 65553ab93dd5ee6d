#include "compute-node/model/forward/forward_pass.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/timeline/timeline.h"
#include "compute-node/kernels/ops.h"

namespace cairn::compute {
namespace {

// Everything between two attentions runs for this many tokens at a time: each weight that is read
// serves all of them, and their feed-forward activations stay small.
constexpr std::int64_t kPieceTokens = 128;
constexpr std::int64_t kLogitsBytesMax = 8 << 20;

std::span<float> Row(std::vector<float>& rows, std::int64_t row, std::int64_t columns) {
  return {rows.data() + row * columns, static_cast<std::size_t>(columns)};
}

const float* OrNull(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

// How many elements each buffer of a ForwardScratch has.
struct ScratchCounts {
  ScratchCounts(const ModelConfig& config, std::int64_t tokens_max) {
    const std::int64_t piece = std::min(tokens_max, kPieceTokens);
    const std::int64_t widest =
        std::max({config.embedding_length, config.query_length(), config.feed_forward_length});
    hidden = tokens_max * config.embedding_length;
    query = tokens_max * config.query_length();
    key = tokens_max * config.kv_length();
    cosines = tokens_max * (config.head_dim / 2);
    normed = piece * config.embedding_length;
    gate = piece * config.feed_forward_length;
    blocks = piece * ((widest + kActivationBlock - 1) / kActivationBlock);
  }

  std::int64_t Bytes() const {
    return (hidden + 2 * (query + key + cosines + normed + gate)) *
               static_cast<std::int64_t>(sizeof(float)) +
           blocks * static_cast<std::int64_t>(sizeof(ActivationBlock));
  }

  std::int64_t hidden;
  std::int64_t query;    // also attended
  std::int64_t key;      // also value
  std::int64_t cosines;  // also sines
  std::int64_t normed;   // also projected
  std::int64_t gate;     // also up
  std::int64_t blocks;
};

}  // namespace

std::int64_t ForwardScratchBytes(const ModelConfig& config, std::int64_t batch_tokens) {
  return ScratchCounts(config, batch_tokens).Bytes() +
         ScratchCounts(config, std::min(batch_tokens, kStepTokensMax)).Bytes();
}

ForwardScratch::ForwardScratch(const ModelConfig& config, std::int64_t tokens_max) {
  const ScratchCounts counts(config, tokens_max);
  const auto resize = [](std::int64_t count, auto&... buffers) {
    (buffers.resize(static_cast<std::size_t>(count)), ...);
  };
  resize(counts.hidden, hidden);
  resize(counts.query, query, attended);
  resize(counts.key, key, value);
  resize(counts.cosines, cosines, sines);
  resize(counts.normed, normed, projected);
  resize(counts.gate, gate, up);
  resize(counts.blocks, blocks);
}

ForwardPass::ForwardPass(const ModelParts& parts, ForwardScratch& scratch,
                         std::span<SequencePass* const> sequences, std::function<void()> between)
    : config_(parts.config),
      weights_(parts.weights),
      pool_(parts.pool),
      rope_(parts.rope),
      scratch_(scratch),
      between_(std::move(between)) {
  for (SequencePass* sequence : sequences) {
    sequences_.push_back({sequence, {token_count_, std::ssize(sequence->tokens)}});
    token_count_ += std::ssize(sequence->tokens);
  }
  CAIRN_CHECK_LE(std::ssize(sequences_), kPieceTokens);
}

void ForwardPass::Run() {
  const TimelineSpan span(TimelineKind::kCompute, "forward",
                          {{"tokens", token_count_}, {"sequences", std::ssize(sequences_)}});
  Embed();
  ComputeAngles();
  for (std::int64_t i = 0; i < config_.layer_count && !AllFailed(); ++i) {
    RunLayer(i);
  }
  WriteLastLogits();
  for (const Sequence& sequence : sequences_) {
    if (sequence.pass->status.ok() && sequence.pass->output.all_logits) WriteAllLogits(sequence);
  }
}

bool ForwardPass::AllFailed() const {
  return std::none_of(sequences_.begin(), sequences_.end(),
                      [](const Sequence& sequence) { return sequence.pass->status.ok(); });
}

void ForwardPass::RunLayer(std::int64_t index) {
  const TimelineSpan span(TimelineKind::kCompute, "layer", {{"layer", index}});
  const LayerWeights& layer = weights_.layer(index);
  const Rows all{0, token_count_};
  ForPieces({&all, 1}, [&](Rows rows) {
    const TimelineSpan piece(TimelineKind::kCompute, "project", {{"layer", index}});
    ProjectQueryKeyValue(layer, rows);
  });
  for (const Sequence& sequence : sequences_) {
    Attend(index, sequence);
  }
  // Behind the last attention only tokens whose logits are wanted need to be computed.
  const bool last_layer = index + 1 == config_.layer_count;
  const std::vector<Rows> wanted = last_layer ? WantedRows() : std::vector<Rows>{all};
  ForPieces(wanted, [&](Rows rows) {
    {
      const TimelineSpan piece(TimelineKind::kCompute, "project_attended", {{"layer", index}});
      ProjectAttended(layer, rows);
    }
    for (const Forecast forecast : {Forecast::kQuerySums, Forecast::kQueries}) {
      if (!last_layer) PredictQueries(index + 1, rows, forecast);
    }
    const TimelineSpan piece(TimelineKind::kCompute, "feed_forward", {{"layer", index}});
    FeedForward(layer, rows);
  });
}

// Of the sequences in `rows` that want it. The queries of the layer before are not needed any more.
void ForwardPass::PredictQueries(std::int64_t layer, Rows rows, Forecast forecast) {
  std::vector<const Sequence*> wanting;
  for (const Sequence& sequence : sequences_) {
    const SequencePass& pass = *sequence.pass;
    const bool is_here =
        sequence.rows.first >= rows.first && sequence.rows.first < rows.first + rows.count;
    if (is_here && sequence.rows.count == 1 && pass.status.ok() &&
        pass.attention->WantedForecast(static_cast<int>(layer)) == forecast) {
      wanting.push_back(&sequence);
    }
  }
  if (wanting.empty()) return;
  const TimelineSpan span(TimelineKind::kCompute, "predict_queries", {{"layer", layer}});
  const LayerWeights& weights = weights_.layer(layer);
  const bool sums = forecast == Forecast::kQuerySums;
  const std::int64_t length = sums ? config_.kv_length() : config_.query_length();
  const MatMulJob job{sums ? weights.query_sum : weights.query,
                      OrNull(sums ? weights.query_sum_bias : weights.query_bias),
                      scratch_.query.data(), length};
  const auto token_of = [&](std::int64_t i) {
    return wanting[static_cast<std::size_t>(i)]->rows.first;
  };
  MultiplyNormalised(std::ssize(wanting), token_of, weights.attention_norm, {&job, 1});
  for (std::int64_t i = 0; i < std::ssize(wanting); ++i) {
    RotateHeads(scratch_.query, i, token_of(i), length / config_.head_dim);
    wanting[static_cast<std::size_t>(i)]->pass->attention->Predict(static_cast<int>(layer),
                                                                   Row(scratch_.query, i, length));
  }
}

// A sequence that fails goes on with zeros, which nobody sees, rather than move the others' rows.
void ForwardPass::Attend(std::int64_t layer, const Sequence& sequence) {
  SequencePass& pass = *sequence.pass;
  if (!pass.status.ok()) return;
  const auto rows = [&](std::vector<float>& values, std::int64_t columns) {
    return std::span<float>(values.data() + sequence.rows.first * columns,
                            static_cast<std::size_t>(sequence.rows.count * columns));
  };
  const std::span<float> out = rows(scratch_.attended, config_.query_length());
  if (pass.cancel != nullptr && pass.cancel->load(std::memory_order_relaxed)) {
    pass.status = Cancelled("forward of {} tokens was cancelled before layer {} of {}",
                            sequence.rows.count, layer, config_.layer_count);
  } else {
    pass.status = pass.attention->Attend(
        {static_cast<int>(layer), pass.first_position, sequence.rows.count,
         rows(scratch_.query, config_.query_length()), rows(scratch_.key, config_.kv_length()),
         rows(scratch_.value, config_.kv_length()), out, between_ ? &between_ : nullptr});
  }
  if (!pass.status.ok()) std::fill(out.begin(), out.end(), 0.0F);
}

template <typename Body>
void ForwardPass::ForPieces(std::span<const Rows> all, const Body& body) {
  for (const Rows& rows : all) {
    const std::int64_t end = rows.first + rows.count;
    for (std::int64_t first = rows.first; first < end; first += kPieceTokens) {
      if (between_) between_();
      body(Rows{first, std::min(kPieceTokens, end - first)});
    }
  }
}

void ForwardPass::Embed() {
  for (const Sequence& sequence : sequences_) {
    for (std::int64_t i = 0; i < sequence.rows.count; ++i) {
      weights_.ReadEmbedding(
          sequence.pass->tokens[static_cast<std::size_t>(i)],
          Row(scratch_.hidden, sequence.rows.first + i, config_.embedding_length));
    }
  }
}

void ForwardPass::ComputeAngles() {
  for (const Sequence& sequence : sequences_) {
    pool_.ParallelFor(sequence.rows.count, [&](std::int64_t token) {
      const std::int64_t half = config_.head_dim / 2;
      const std::int64_t row = sequence.rows.first + token;
      ComputeRopeAngles(sequence.pass->first_position + token, rope_.frequencies, rope_.magnitude,
                        Row(scratch_.cosines, row, half), Row(scratch_.sines, row, half));
    });
  }
}

void ForwardPass::RotateHeads(std::vector<float>& rows, std::int64_t row, std::int64_t token,
                              std::int64_t head_count) {
  const std::int64_t half = config_.head_dim / 2;
  const RopeAngles angles{Row(scratch_.cosines, token, half), Row(scratch_.sines, token, half)};
  for (std::int64_t head = 0; head < head_count; ++head) {
    const std::span<float> vector = Row(rows, row * head_count + head, config_.head_dim);
    if (config_.rotary_pairs == RotaryPairs::kHalves) {
      RopeHalves(angles, vector);
    } else {
      RopeAdjacent(angles, vector);
    }
  }
}

// Runs `jobs` on `token_count` rows of `column_count` values. row_of(token) finishes a row where it
// stands in `values` and answers it; it runs on several threads.
template <typename RowOf>
void ForwardPass::Multiply(std::int64_t token_count, std::int64_t column_count, const RowOf& row_of,
                           const float* values, std::span<const MatMulJob> jobs) {
  const bool quantised = std::any_of(
      jobs.begin(), jobs.end(), [](const MatMulJob& job) { return IsQuantised(job.weights.type); });
  const std::int64_t block_count = column_count / kActivationBlock;
  pool_.ParallelFor(token_count, [&](std::int64_t token) {
    const std::span<const float> row = row_of(token);
    if (quantised) {
      QuantizeActivations(row, {scratch_.blocks.data() + token * block_count,
                                static_cast<std::size_t>(block_count)});
    }
  });
  MatMul(pool_, {token_count, column_count, values, quantised ? scratch_.blocks.data() : nullptr},
         jobs);
}

// Runs `jobs` on the hidden rows index_of(0) to index_of(count - 1), normalised with the weights
// `norm`.
template <typename IndexOf>
void ForwardPass::MultiplyNormalised(std::int64_t count, const IndexOf& index_of,
                                     std::span<const float> norm, std::span<const MatMulJob> jobs) {
  const std::int64_t columns = config_.embedding_length;
  const auto normalise = [&](std::int64_t token) {
    const std::span<float> row = Row(scratch_.normed, token, columns);
    RmsNorm(Row(scratch_.hidden, index_of(token), columns), norm,
            static_cast<float>(config_.rms_norm_epsilon), row);
    return row;
  };
  Multiply(count, columns, normalise, scratch_.normed.data(), jobs);
}

void ForwardPass::ProjectQueryKeyValue(const LayerWeights& layer, Rows rows) {
  const std::int64_t query = config_.query_length();
  const std::int64_t kv = config_.kv_length();
  const MatMulJob jobs[] = {
      {layer.query, OrNull(layer.query_bias), Row(scratch_.query, rows.first, query).data(), query},
      {layer.key, OrNull(layer.key_bias), Row(scratch_.key, rows.first, kv).data(), kv},
      {layer.value, OrNull(layer.value_bias), Row(scratch_.value, rows.first, kv).data(), kv},
  };
  MultiplyNormalised(
      rows.count, [&](std::int64_t token) { return rows.first + token; }, layer.attention_norm,
      jobs);
  pool_.ParallelFor(rows.count, [&](std::int64_t token) {
    const std::int64_t row = rows.first + token;
    RotateHeads(scratch_.query, row, row, config_.head_count);
    RotateHeads(scratch_.key, row, row, config_.kv_head_count);
  });
}

void ForwardPass::ProjectAttended(const LayerWeights& layer, Rows rows) {
  const std::int64_t columns = config_.query_length();
  const float* attended = Row(scratch_.attended, rows.first, columns).data();
  const MatMulJob job{layer.attention_output, OrNull(layer.attention_output_bias),
                      scratch_.projected.data(), config_.embedding_length};
  Multiply(rows.count, columns,
           [&](std::int64_t token) { return Row(scratch_.attended, rows.first + token, columns); },
           attended, {&job, 1});
  AddProjected(rows);
}

void ForwardPass::FeedForward(const LayerWeights& layer, Rows rows) {
  const std::int64_t columns = config_.embedding_length;
  const std::int64_t width = config_.feed_forward_length;
  const MatMulJob into_jobs[] = {{layer.gate, OrNull(layer.gate_bias), scratch_.gate.data(), width},
                                 {layer.up, OrNull(layer.up_bias), scratch_.up.data(), width}};
  MultiplyNormalised(
      rows.count, [&](std::int64_t token) { return rows.first + token; }, layer.feed_forward_norm,
      into_jobs);
  const auto activate = [&](std::int64_t token) {
    const std::span<float> row = Row(scratch_.gate, token, width);
    SiluMul(Row(scratch_.up, token, width), row);
    return row;
  };
  const MatMulJob down_job{layer.down, OrNull(layer.down_bias), scratch_.projected.data(), columns};
  Multiply(rows.count, width, activate, scratch_.gate.data(), {&down_job, 1});
  AddProjected(rows);
}

void ForwardPass::AddProjected(Rows rows) {
  for (std::int64_t token = 0; token < rows.count; ++token) {
    AddTo(Row(scratch_.projected, token, config_.embedding_length),
          Row(scratch_.hidden, rows.first + token, config_.embedding_length));
  }
}

// Neighbours are joined: steps of several sequences are one piece of work.
std::vector<ForwardPass::Rows> ForwardPass::WantedRows() const {
  std::vector<Rows> wanted;
  for (const Sequence& sequence : sequences_) {
    Rows rows = sequence.rows;
    if (!sequence.pass->output.all_logits) {
      if (sequence.pass->output.last_logits.empty()) continue;
      rows = {rows.first + rows.count - 1, 1};
    }
    if (!wanted.empty() && wanted.back().first + wanted.back().count == rows.first) {
      wanted.back().count += rows.count;
    } else {
      wanted.push_back(rows);
    }
  }
  return wanted;
}

void ForwardPass::WriteLastLogits() {
  std::vector<const Sequence*> wanted;
  for (const Sequence& sequence : sequences_) {
    if (sequence.pass->status.ok() && !sequence.pass->output.last_logits.empty()) {
      wanted.push_back(&sequence);
    }
  }
  if (wanted.empty()) return;
  const TimelineSpan span(TimelineKind::kCompute, "logits");
  const auto last_row = [&](std::int64_t index) {
    const Rows& rows = wanted[static_cast<std::size_t>(index)]->rows;
    return rows.first + rows.count - 1;
  };
  MatMulJob job{weights_.output(), nullptr, nullptr, config_.vocab_size};
  if (wanted.size() == 1) {
    job.out = wanted[0]->pass->output.last_logits.data();
    MultiplyNormalised(1, last_row, weights_.output_norm(), {&job, 1});
    return;
  }
  std::vector<float>& logits = scratch_.logits;
  logits.resize(
      std::max(logits.size(), wanted.size() * static_cast<std::size_t>(config_.vocab_size)));
  job.out = logits.data();
  MultiplyNormalised(std::ssize(wanted), last_row, weights_.output_norm(), {&job, 1});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::span<float> row = Row(logits, static_cast<std::int64_t>(i), config_.vocab_size);
    std::copy(row.begin(), row.end(), wanted[i]->pass->output.last_logits.begin());
  }
}

void ForwardPass::WriteAllLogits(const Sequence& sequence) {
  const auto row_bytes = config_.vocab_size * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t row_count =
      std::clamp<std::int64_t>(kLogitsBytesMax / row_bytes, 1, kPieceTokens);
  std::vector<float> logits(static_cast<std::size_t>(row_count * config_.vocab_size));
  for (std::int64_t first = 0; first < sequence.rows.count && sequence.pass->status.ok();
       first += row_count) {
    const std::int64_t count = std::min(row_count, sequence.rows.count - first);
    const MatMulJob job{weights_.output(), nullptr, logits.data(), config_.vocab_size};
    MultiplyNormalised(count,
                       [&](std::int64_t token) { return sequence.rows.first + first + token; },
                       weights_.output_norm(), {&job, 1});
    sequence.pass->status = sequence.pass->output.all_logits(
        first, {logits.data(), static_cast<std::size_t>(count * config_.vocab_size)});
  }
}

}  // namespace cairn::compute
