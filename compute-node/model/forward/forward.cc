#include "compute-node/model/forward/forward.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "compute-node/model/forward/forward_pass.h"
#include "compute-node/model/forward/weights.h"
#include "compute-node/model/gguf/model_digest.h"

namespace cairn::compute {

Model::Model(const ModelOptions& options)
    : pool_(options.thread_count), batch_tokens_max_(options.batch_tokens_max) {}
Model::~Model() = default;

absl::StatusOr<std::string> Model::Digest() const {
  MutexLock lock(digest_mutex_);
  if (digest_.empty()) {
    CAIRN_ASSIGN_OR_RETURN(std::string of_paths, ModelDigest(file_->paths()));
    // It must be that of the weights that were mapped.
    CAIRN_RETURN_IF_ERROR(file_->CheckUnchanged());
    digest_ = std::move(of_paths);
  }
  return digest_;
}

absl::Status Model::CheckIntact() const {
  MutexLock lock(intact_mutex_);
  if (not_intact_.ok()) not_intact_ = file_->CheckIntact();
  if (not_intact_.ok()) not_intact_ = weights_->CheckIntact();
  return not_intact_;
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
  std::unique_ptr<Model> model(new Model(options));
  CAIRN_ASSIGN_OR_RETURN(model->file_, GgufFile::Open(path));
  const auto in_file = [&](const absl::Status& status) {
    return Annotate(status, fmt::format("model file '{}'", path));
  };
  absl::StatusOr<ModelConfig> config = ReadModelConfig(*model->file_);
  if (!config.ok()) {
    return in_file(config.status());
  }
  model->config_ = *std::move(config);
  PackedCache cache;
  if (!options.packed_directory.empty()) {
    cache.directory = options.packed_directory;
    cache.size_bytes_min = options.packed_bytes_min;
    CAIRN_ASSIGN_OR_RETURN(cache.model_digest, model->Digest());
  }
  auto weights =
      Weights::Load(*model->file_, model->config_, model->pool_, cache, options.progress);
  if (!weights.ok()) {
    return in_file(weights.status());
  }
  model->weights_ = *std::move(weights);
  CAIRN_RETURN_IF_ERROR(model->CheckIntact());
  model->rope_ = MakeRotaryAngles(model->config_, model->weights_->rope_factors());
  model->scratch_ = std::make_unique<ForwardScratch>(model->config_, options.batch_tokens_max);
  model->step_scratch_ = std::make_unique<ForwardScratch>(
      model->config_, std::min(options.batch_tokens_max, kStepTokensMax));
  return model;
}

void Model::Forward(std::span<SequencePass* const> sequences,
                    const std::function<void()>& between) {
  std::vector<SequencePass*> valid;
  std::int64_t token_count = 0;
  for (SequencePass* sequence : sequences) {
    sequence->status = CheckSequence(*sequence);
    if (!sequence->status.ok()) continue;
    token_count += std::ssize(sequence->tokens);
    valid.push_back(sequence);
  }
  CAIRN_CHECK_LE(token_count, batch_tokens_max_);
  if (valid.empty()) return;
  const bool step = token_count <= kStepTokensMax;
  const ModelParts parts{config_, *weights_, pool_, rope_};
  ForwardPass pass(parts, step ? *step_scratch_ : *scratch_, valid, step ? nullptr : between);
  pass.Run();
  // Some weights are read where they are mapped: only now it is known what they were.
  const absl::Status intact = CheckIntact();
  if (intact.ok()) return;
  for (SequencePass* sequence : valid) sequence->status = intact;
}

absl::Status Model::Forward(std::span<const std::int32_t> tokens, std::int64_t first_position,
                            KvAttention& attention, const ForwardOutput& output,
                            const std::atomic<bool>* cancel) {
  SequencePass sequence{tokens, first_position, &attention, output, cancel, absl::OkStatus()};
  SequencePass* const sequences[] = {&sequence};
  Forward(sequences, nullptr);
  return std::move(sequence.status);
}

absl::Status Model::CheckSequence(const SequencePass& sequence) const {
  CAIRN_CHECK(sequence.output.last_logits.empty() ||
              std::ssize(sequence.output.last_logits) == config_.vocab_size);
  const auto token_count = std::ssize(sequence.tokens);
  const std::int64_t first_position = sequence.first_position;
  if (token_count < 1 || token_count > batch_tokens_max_) {
    return InvalidArgument("forward: {} tokens in a batch, it must be 1 to {}", token_count,
                           batch_tokens_max_);
  }
  if (first_position < 0 || first_position > config_.context_length - token_count) {
    return InvalidArgument(
        "forward: {} tokens from position {} do not fit the model's context of {}", token_count,
        first_position, config_.context_length);
  }
  for (const std::int32_t token : sequence.tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return InvalidArgument("forward: token {} is not in the vocabulary of {}", token,
                             config_.vocab_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
