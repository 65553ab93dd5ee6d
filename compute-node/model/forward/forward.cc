#include "compute-node/model/forward/forward.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "compute-node/model/forward/forward_pass.h"
#include "compute-node/model/forward/rope.h"
#include "compute-node/model/forward/weights.h"
#include "compute-node/model/gguf/model_digest.h"

namespace cairn::compute {

struct Model::Impl {
  explicit Impl(const ModelOptions& options) : pool(options.thread_count) {}

  absl::Status CheckSequence(const SequencePass& sequence) const;
  absl::StatusOr<std::string> Digest() const;
  absl::Status CheckIntact() const;

  ThreadPool pool;
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  std::unique_ptr<Weights> weights;
  RotaryAngles rope;
  std::int64_t batch_tokens_max = 0;
  std::unique_ptr<ForwardScratch> scratch;
  std::unique_ptr<ForwardScratch> step_scratch;
  mutable Mutex digest_mutex;
  mutable std::string digest CAIRN_GUARDED_BY(digest_mutex);
  mutable Mutex intact_mutex;
  mutable absl::Status not_intact CAIRN_GUARDED_BY(intact_mutex);  // what stays
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
const GgufFile& Model::file() const { return *impl_->file; }
ThreadPool& Model::pool() { return impl_->pool; }

absl::StatusOr<std::string> Model::Digest() const { return impl_->Digest(); }

absl::StatusOr<std::string> Model::Impl::Digest() const {
  MutexLock lock(digest_mutex);
  if (digest.empty()) {
    CAIRN_ASSIGN_OR_RETURN(std::string of_paths, ModelDigest(file->paths()));
    // It must be that of the weights that were mapped.
    CAIRN_RETURN_IF_ERROR(file->CheckUnchanged());
    digest = std::move(of_paths);
  }
  return digest;
}

absl::Status Model::CheckIntact() const { return impl_->CheckIntact(); }

absl::Status Model::Impl::CheckIntact() const {
  MutexLock lock(intact_mutex);
  if (not_intact.ok()) not_intact = file->CheckIntact();
  if (not_intact.ok()) not_intact = weights->CheckIntact();
  return not_intact;
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
  auto impl = std::make_unique<Impl>(options);
  CAIRN_ASSIGN_OR_RETURN(impl->file, GgufFile::Open(path));
  const auto in_file = [&](const absl::Status& status) {
    return Annotate(status, fmt::format("model file '{}'", path));
  };
  absl::StatusOr<ModelConfig> config = ReadModelConfig(*impl->file);
  if (!config.ok()) {
    return in_file(config.status());
  }
  impl->config = *std::move(config);
  PackedCache cache;
  if (!options.packed_directory.empty()) {
    cache.directory = options.packed_directory;
    cache.size_bytes_min = options.packed_bytes_min;
    CAIRN_ASSIGN_OR_RETURN(cache.model_digest, impl->Digest());
  }
  auto weights = Weights::Load(*impl->file, impl->config, impl->pool, cache, options.progress);
  if (!weights.ok()) {
    return in_file(weights.status());
  }
  impl->weights = *std::move(weights);
  CAIRN_RETURN_IF_ERROR(impl->CheckIntact());
  impl->rope = MakeRotaryAngles(impl->config, impl->weights->rope_factors());
  impl->batch_tokens_max = options.batch_tokens_max;
  impl->scratch = std::make_unique<ForwardScratch>(impl->config, options.batch_tokens_max);
  impl->step_scratch = std::make_unique<ForwardScratch>(
      impl->config, std::min(options.batch_tokens_max, kStepTokensMax));
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

void Model::Forward(std::span<SequencePass* const> sequences,
                    const std::function<void()>& between) {
  Impl& model = *impl_;
  std::vector<SequencePass*> valid;
  std::int64_t token_count = 0;
  for (SequencePass* sequence : sequences) {
    sequence->status = model.CheckSequence(*sequence);
    if (!sequence->status.ok()) continue;
    token_count += std::ssize(sequence->tokens);
    valid.push_back(sequence);
  }
  CAIRN_CHECK_LE(token_count, model.batch_tokens_max);
  if (valid.empty()) return;
  const bool step = token_count <= kStepTokensMax;
  const ModelParts parts{model.config, *model.weights, model.pool, model.rope};
  ForwardPass pass(parts, step ? *model.step_scratch : *model.scratch, valid,
                   step ? nullptr : between);
  pass.Run();
  // Some weights are read where they are mapped: only now it is known what they were.
  const absl::Status intact = model.CheckIntact();
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

absl::Status Model::Impl::CheckSequence(const SequencePass& sequence) const {
  CAIRN_CHECK(sequence.output.last_logits.empty() ||
              std::ssize(sequence.output.last_logits) == config.vocab_size);
  const auto token_count = std::ssize(sequence.tokens);
  const std::int64_t first_position = sequence.first_position;
  if (token_count < 1 || token_count > batch_tokens_max) {
    return InvalidArgument("forward: {} tokens in a batch, it must be 1 to {}", token_count,
                           batch_tokens_max);
  }
  if (first_position < 0 || first_position > config.context_length - token_count) {
    return InvalidArgument(
        "forward: {} tokens from position {} do not fit the model's context of {}", token_count,
        first_position, config.context_length);
  }
  for (const std::int32_t token : sequence.tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return InvalidArgument("forward: token {} is not in the vocabulary of {}", token,
                             config.vocab_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
