#include "compute-node/model/forward.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "compute-node/kernels/activations.h"
#include "compute-node/kernels/matmul.h"
#include "compute-node/kernels/ops.h"
#include "compute-node/model/model_digest.h"
#include "compute-node/model/weights.h"

namespace cairn::compute {
namespace {

// Everything between two attentions runs for this many tokens at a time: each weight that is read
// serves all of them, and their feed-forward activations stay small.
constexpr std::int64_t kSubBatchTokens = 128;
constexpr std::int64_t kLogitsBytesMax = 8 << 20;

// Memory that Load allocates and touches, so that Forward allocates nothing that grows with the
// batch.
struct Scratch {
  Scratch(const ModelConfig& config, std::int64_t batch_tokens) {
    const auto floats = [](std::int64_t rows, std::int64_t columns) {
      return static_cast<std::size_t>(rows * columns);
    };
    const std::int64_t sub_batch = std::min(batch_tokens, kSubBatchTokens);
    const std::int64_t widest =
        std::max({config.embedding_length, config.query_length(), config.feed_forward_length});
    hidden.resize(floats(batch_tokens, config.embedding_length));
    query.resize(floats(batch_tokens, config.query_length()));
    attended.resize(floats(batch_tokens, config.query_length()));
    key.resize(floats(batch_tokens, config.kv_length()));
    value.resize(floats(batch_tokens, config.kv_length()));
    cosines.resize(floats(batch_tokens, config.head_dim / 2));
    sines.resize(floats(batch_tokens, config.head_dim / 2));
    normed.resize(floats(sub_batch, config.embedding_length));
    projected.resize(floats(sub_batch, config.embedding_length));
    gate.resize(floats(sub_batch, config.feed_forward_length));
    up.resize(floats(sub_batch, config.feed_forward_length));
    blocks.resize(floats(sub_batch, (widest + kActivationBlock - 1) / kActivationBlock));
  }

  // For the whole batch, (token, ...).
  std::vector<float> hidden;    // (embedding)
  std::vector<float> query;     // (head, head_dim)
  std::vector<float> attended;  // (head, head_dim)
  std::vector<float> key;       // (kv_head, head_dim)
  std::vector<float> value;     // (kv_head, head_dim)
  std::vector<float> cosines;   // (head_dim / 2)
  std::vector<float> sines;     // (head_dim / 2)
  // For kSubBatchTokens tokens.
  std::vector<float> normed;     // (embedding)
  std::vector<float> projected;  // (embedding)
  std::vector<float> gate;       // (feed_forward)
  std::vector<float> up;         // (feed_forward)
  std::vector<ActivationBlock> blocks;
};

std::span<float> Row(std::vector<float>& rows, std::int64_t row, std::int64_t columns) {
  return {rows.data() + row * columns, static_cast<std::size_t>(columns)};
}

const float* OrNull(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

// Frequencies of the rotary embedding: base^(-2i / head_dim), scaled and divided by the model's
// factors.
std::vector<double> RopeFrequencies(const ModelConfig& config, const std::vector<float>& factors) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = std::pow(config.rope_freq_base, exponent) * config.rope_frequency_scale;
    if (!factors.empty()) {
      frequency /= static_cast<double>(factors[static_cast<std::size_t>(i)]);
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace

struct Model::Impl {
  Impl(std::string model_path, const ModelOptions& options)
      : path(std::move(model_path)), pool(options.thread_count) {}

  absl::Status CheckTokens(std::span<const std::int32_t> tokens, std::int64_t first_position) const;
  void Embed(std::span<const std::int32_t> tokens);
  void ComputeAngles(std::int64_t first_position, std::int64_t token_count);
  void RotateHeads(std::vector<float>& rows, std::int64_t token, std::int64_t head_count);
  template <typename RowOf>
  void Multiply(std::int64_t token_count, std::int64_t column_count, const RowOf& row_of,
                const float* values, std::span<const MatMulJob> jobs);
  void MultiplyNormalised(std::int64_t first, std::int64_t count, std::span<const float> norm,
                          std::span<const MatMulJob> jobs);
  void ProjectQueryKeyValue(const LayerWeights& layer, std::int64_t first, std::int64_t count);
  void ProjectAttended(const LayerWeights& layer, std::int64_t first, std::int64_t count);
  void FeedForward(const LayerWeights& layer, std::int64_t first, std::int64_t count);
  void AddProjected(std::int64_t first, std::int64_t count);
  void ComputeLogits(std::int64_t first, std::int64_t count, float* out);
  absl::Status WriteAllLogits(std::int64_t token_count, const ForwardOutput& output);

  const std::string path;
  ThreadPool pool;
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  std::unique_ptr<Weights> weights;
  std::vector<double> rope_frequencies;
  std::int64_t batch_tokens_max = 0;
  std::unique_ptr<Scratch> scratch;
  mutable Mutex digest_mutex;
  mutable std::string digest CAIRN_GUARDED_BY(digest_mutex);
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
const GgufFile& Model::file() const { return *impl_->file; }
ThreadPool& Model::pool() { return impl_->pool; }

absl::StatusOr<std::string> Model::Digest() const {
  MutexLock lock(impl_->digest_mutex);
  if (impl_->digest.empty()) {
    CAIRN_ASSIGN_OR_RETURN(impl_->digest, ModelDigest(impl_->path));
  }
  return impl_->digest;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& path,
                                                   const ModelOptions& options) {
  if (options.thread_count < 1 || options.thread_count > kThreadCountMax) {
    return InvalidArgument("load model: thread_count is {}, it must be 1 to {}",
                           options.thread_count, kThreadCountMax);
  }
  if (options.batch_tokens_max < 1 || options.batch_tokens_max > kBatchTokensMax) {
    return InvalidArgument("load model: batch_tokens_max is {}, it must be 1 to {}",
                           options.batch_tokens_max, kBatchTokensMax);
  }
  auto impl = std::make_unique<Impl>(path, options);
  CAIRN_ASSIGN_OR_RETURN(impl->file, GgufFile::Open(path));
  const auto in_file = [&](const absl::Status& status) {
    return Annotate(status, fmt::format("model file '{}'", path));
  };
  absl::StatusOr<ModelConfig> config = ReadModelConfig(*impl->file);
  if (!config.ok()) {
    return in_file(config.status());
  }
  impl->config = *std::move(config);
  auto weights = Weights::Load(*impl->file, impl->config, impl->pool, options.progress);
  if (!weights.ok()) {
    return in_file(weights.status());
  }
  impl->weights = *std::move(weights);
  impl->rope_frequencies = RopeFrequencies(impl->config, impl->weights->rope_factors());
  impl->batch_tokens_max = options.batch_tokens_max;
  impl->scratch = std::make_unique<Scratch>(impl->config, options.batch_tokens_max);
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

absl::Status Model::Forward(std::span<const std::int32_t> tokens, std::int64_t first_position,
                            KvAttention& attention, const ForwardOutput& output,
                            const std::atomic<bool>* cancel) {
  Impl& model = *impl_;
  CAIRN_RETURN_IF_ERROR(model.CheckTokens(tokens, first_position));
  CAIRN_CHECK(output.last_logits.empty() ||
              static_cast<std::int64_t>(output.last_logits.size()) == model.config.vocab_size);
  const auto token_count = static_cast<std::int64_t>(tokens.size());
  Scratch& scratch = *model.scratch;
  const auto rows = [&](std::vector<float>& values, std::int64_t columns) {
    return std::span<float>(values.data(), static_cast<std::size_t>(token_count * columns));
  };
  // Behind the last attention only tokens whose logits are wanted need to be computed.
  std::int64_t first_wanted = output.last_logits.empty() ? token_count : token_count - 1;
  if (output.all_logits) {
    first_wanted = 0;
  }

  model.Embed(tokens);
  model.ComputeAngles(first_position, token_count);
  for (std::int64_t i = 0; i < model.config.layer_count; ++i) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Cancelled("forward of {} tokens was cancelled before layer {} of {}", token_count, i,
                       model.config.layer_count);
    }
    const LayerWeights& layer = model.weights->layer(i);
    for (std::int64_t first = 0; first < token_count; first += kSubBatchTokens) {
      model.ProjectQueryKeyValue(layer, first, std::min(kSubBatchTokens, token_count - first));
    }
    CAIRN_RETURN_IF_ERROR(attention.Attend({static_cast<int>(i), first_position, token_count,
                                            rows(scratch.query, model.config.query_length()),
                                            rows(scratch.key, model.config.kv_length()),
                                            rows(scratch.value, model.config.kv_length()),
                                            rows(scratch.attended, model.config.query_length())}));
    const bool last_layer = i + 1 == model.config.layer_count;
    for (std::int64_t first = last_layer ? first_wanted : 0; first < token_count;
         first += kSubBatchTokens) {
      const std::int64_t count = std::min(kSubBatchTokens, token_count - first);
      model.ProjectAttended(layer, first, count);
      model.FeedForward(layer, first, count);
    }
  }
  if (!output.last_logits.empty()) {
    model.ComputeLogits(token_count - 1, 1, output.last_logits.data());
  }
  return output.all_logits ? model.WriteAllLogits(token_count, output) : absl::OkStatus();
}

absl::Status Model::Impl::CheckTokens(std::span<const std::int32_t> tokens,
                                      std::int64_t first_position) const {
  const auto token_count = static_cast<std::int64_t>(tokens.size());
  if (token_count < 1 || token_count > batch_tokens_max) {
    return InvalidArgument("forward: {} tokens in a batch, it must be 1 to {}", token_count,
                           batch_tokens_max);
  }
  if (first_position < 0 || first_position > config.context_length - token_count) {
    return InvalidArgument(
        "forward: {} tokens from position {} do not fit the model's context of {}", token_count,
        first_position, config.context_length);
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return InvalidArgument("forward: token {} is not in the vocabulary of {}", token,
                             config.vocab_size);
    }
  }
  return absl::OkStatus();
}

void Model::Impl::Embed(std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    weights->ReadEmbedding(
        tokens[i], Row(scratch->hidden, static_cast<std::int64_t>(i), config.embedding_length));
  }
}

void Model::Impl::ComputeAngles(std::int64_t first_position, std::int64_t token_count) {
  pool.ParallelFor(token_count, [&](std::int64_t token) {
    const std::int64_t half = config.head_dim / 2;
    ComputeRopeAngles(first_position + token, rope_frequencies, Row(scratch->cosines, token, half),
                      Row(scratch->sines, token, half));
  });
}

void Model::Impl::RotateHeads(std::vector<float>& rows, std::int64_t token,
                              std::int64_t head_count) {
  const std::int64_t half = config.head_dim / 2;
  const RopeAngles angles{Row(scratch->cosines, token, half), Row(scratch->sines, token, half)};
  for (std::int64_t head = 0; head < head_count; ++head) {
    const std::span<float> vector = Row(rows, token * head_count + head, config.head_dim);
    if (config.rope_pairing == RopePairing::kHalves) {
      RopeHalves(angles, vector);
    } else {
      RopeAdjacent(angles, vector);
    }
  }
}

// Runs `jobs` on `token_count` rows of `column_count` values. row_of(token) finishes a row where it
// stands in `values` and answers it; it runs on several threads.
template <typename RowOf>
void Model::Impl::Multiply(std::int64_t token_count, std::int64_t column_count, const RowOf& row_of,
                           const float* values, std::span<const MatMulJob> jobs) {
  const bool quantised = std::any_of(
      jobs.begin(), jobs.end(), [](const MatMulJob& job) { return IsQuantised(job.weights.type); });
  const std::int64_t block_count = column_count / kActivationBlock;
  pool.ParallelFor(token_count, [&](std::int64_t token) {
    const std::span<const float> row = row_of(token);
    if (quantised) {
      QuantizeActivations(row, {scratch->blocks.data() + token * block_count,
                                static_cast<std::size_t>(block_count)});
    }
  });
  MatMul(pool, {token_count, column_count, values, quantised ? scratch->blocks.data() : nullptr},
         jobs);
}

// Runs `jobs` on the hidden rows from `first` on, normalised with the weights `norm`.
void Model::Impl::MultiplyNormalised(std::int64_t first, std::int64_t count,
                                     std::span<const float> norm, std::span<const MatMulJob> jobs) {
  const std::int64_t columns = config.embedding_length;
  const auto normalise = [&](std::int64_t token) {
    const std::span<float> row = Row(scratch->normed, token, columns);
    RmsNorm(Row(scratch->hidden, first + token, columns), norm,
            static_cast<float>(config.rms_norm_epsilon), row);
    return row;
  };
  Multiply(count, columns, normalise, scratch->normed.data(), jobs);
}

void Model::Impl::ProjectQueryKeyValue(const LayerWeights& layer, std::int64_t first,
                                       std::int64_t count) {
  const MatMulJob jobs[] = {
      {layer.query, OrNull(layer.query_bias),
       Row(scratch->query, first, config.query_length()).data(), config.query_length()},
      {layer.key, OrNull(layer.key_bias), Row(scratch->key, first, config.kv_length()).data(),
       config.kv_length()},
      {layer.value, OrNull(layer.value_bias), Row(scratch->value, first, config.kv_length()).data(),
       config.kv_length()},
  };
  MultiplyNormalised(first, count, layer.attention_norm, jobs);
  pool.ParallelFor(count, [&](std::int64_t token) {
    RotateHeads(scratch->query, first + token, config.head_count);
    RotateHeads(scratch->key, first + token, config.kv_head_count);
  });
}

void Model::Impl::ProjectAttended(const LayerWeights& layer, std::int64_t first,
                                  std::int64_t count) {
  const std::int64_t columns = config.query_length();
  const float* attended = Row(scratch->attended, first, columns).data();
  const MatMulJob job{layer.attention_output, OrNull(layer.attention_output_bias),
                      scratch->projected.data(), config.embedding_length};
  Multiply(count, columns,
           [&](std::int64_t token) { return Row(scratch->attended, first + token, columns); },
           attended, {&job, 1});
  AddProjected(first, count);
}

void Model::Impl::FeedForward(const LayerWeights& layer, std::int64_t first, std::int64_t count) {
  const std::int64_t columns = config.embedding_length;
  const std::int64_t width = config.feed_forward_length;
  const MatMulJob into_jobs[] = {{layer.gate, OrNull(layer.gate_bias), scratch->gate.data(), width},
                                 {layer.up, OrNull(layer.up_bias), scratch->up.data(), width}};
  MultiplyNormalised(first, count, layer.feed_forward_norm, into_jobs);
  const auto activate = [&](std::int64_t token) {
    const std::span<float> row = Row(scratch->gate, token, width);
    SiluMul(Row(scratch->up, token, width), row);
    return row;
  };
  const MatMulJob down_job{layer.down, OrNull(layer.down_bias), scratch->projected.data(), columns};
  Multiply(count, width, activate, scratch->gate.data(), {&down_job, 1});
  AddProjected(first, count);
}

void Model::Impl::AddProjected(std::int64_t first, std::int64_t count) {
  for (std::int64_t token = 0; token < count; ++token) {
    AddTo(Row(scratch->projected, token, config.embedding_length),
          Row(scratch->hidden, first + token, config.embedding_length));
  }
}

void Model::Impl::ComputeLogits(std::int64_t first, std::int64_t count, float* out) {
  const MatMulJob job{weights->output(), nullptr, out, config.vocab_size};
  MultiplyNormalised(first, count, weights->output_norm(), {&job, 1});
}

absl::Status Model::Impl::WriteAllLogits(std::int64_t token_count, const ForwardOutput& output) {
  const auto row_bytes = config.vocab_size * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t row_count =
      std::clamp<std::int64_t>(kLogitsBytesMax / row_bytes, 1, kSubBatchTokens);
  std::vector<float> logits(static_cast<std::size_t>(row_count * config.vocab_size));
  for (std::int64_t first = 0; first < token_count; first += row_count) {
    const std::int64_t count = std::min(row_count, token_count - first);
    ComputeLogits(first, count, logits.data());
    CAIRN_RETURN_IF_ERROR(output.all_logits(
        first, {logits.data(), static_cast<std::size_t>(count * config.vocab_size)}));
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
