#include "clients/eval/policy_eval.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/model/dense_attention.h"
#include "compute-node/retrieval/dynakv_policy.h"
#include "compute-node/session/conversation.h"

namespace cairn::eval {
namespace {

using compute::Conversation;

// A store that ends with the program meets no other model.
compute::ModelIdentity IdentityHere(const compute::ModelConfig& config, KvFormat kv_format) {
  compute::ModelIdentity identity;
  identity.key.model_digest = std::string(32, '\0');
  identity.key.rope_parameters = "this process's";
  identity.key.kv_format = kv_format;
  identity.layout = {.layer_count = static_cast<std::int32_t>(config.layer_count),
                     .head_count = static_cast<std::int32_t>(config.kv_head_count),
                     .head_dim = static_cast<std::int32_t>(config.head_dim),
                     .kv_format = kv_format};
  return identity;
}

absl::Status Check(const EvalOptions& options, std::int64_t token_count,
                   const compute::ModelConfig& config) {
  if (options.policies.empty()) return InvalidArgument("evaluate: name at least one policy");
  for (std::size_t i = 0; i < options.policies.size(); ++i) {
    const compute::PolicyChoice choice{options.policies[i], options.selection};
    CAIRN_RETURN_IF_ERROR(choice.Validate());
    const auto before = options.policies.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(options.policies.begin(), before, *before) != before) {
      return InvalidArgument("evaluate: policy {} is named twice", *before);
    }
  }
  if (options.recall_every < 1 || options.index_every < 1) {
    return InvalidArgument("evaluate: every {} tokens recall and every {} the index: at least 1",
                           options.recall_every, options.index_every);
  }
  if (options.prefill_tokens < 1 || options.prefill_tokens >= token_count) {
    return InvalidArgument(
        "evaluate: of {} tokens {} are the prompt: it must be at least 1, and leave at least one "
        "to feed",
        token_count, options.prefill_tokens);
  }
  if (token_count > config.context_length) {
    return InvalidArgument("evaluate: {} tokens are more than the model's context of {}",
                           token_count, config.context_length);
  }
  return absl::OkStatus();
}

// Full attention with all keys and values in memory: what policies are compared with.
class Reference {
 public:
  Reference(compute::Model& model, KvFormat format, std::int64_t token_count_max)
      : model_(model),
        attention_(model.config(), format, token_count_max, model.pool()),
        logits_(static_cast<std::size_t>(model.config().vocab_size)) {}

  absl::Status Add(std::span<const std::int32_t> tokens) {
    compute::ForwardOutput output;
    output.last_logits = logits_;
    CAIRN_RETURN_IF_ERROR(model_.Forward(tokens, token_count_, attention_, output, nullptr));
    token_count_ += std::ssize(tokens);
    return absl::OkStatus();
  }
  std::span<const float> logits() const { return logits_; }

 private:
  compute::Model& model_;
  compute::DenseAttention attention_;
  std::vector<float> logits_;
  std::int64_t token_count_ = 0;
};

// What the runs share.
struct EvalWorld {
  compute::Model& model;
  const EvalOptions& options;
  compute::ModelIdentity identity;
  compute::SessionOptions session_options;
  compute::ForwardScheduler& scheduler;
  std::unique_ptr<compute::KvNode> node;
  compute::KvMemory memory{};
};

// The text under one policy.
class PolicyRun : public compute::AttentionObserver {
 public:
  PolicyRun(EvalWorld& world, const std::string& policy)
      : world_(world),
        recall_(world.model.config(),
                {.kv_format = world.options.kv_format,
                 .selection = world.options.selection,
                 .first_position = world.options.prefill_tokens,
                 .every = world.options.recall_every},
                world.model.pool()),
        logits_(static_cast<std::size_t>(world.model.config().vocab_size)) {
    result_.policy = policy;
    result_.entry_bytes = world.identity.layout.EntryBytes(0);
  }

  absl::Status Start(std::span<const std::int32_t> prompt) {
    CreateSession request;
    request.key = world_.identity.key;
    request.layout = world_.identity.layout;
    SessionId id{};
    CAIRN_ASSIGN_OR_RETURN(id, world_.node->Create(request));
    compute::ConversationDeps deps{world_.identity, *world_.node, world_.scheduler,
                                   world_.session_options, world_.memory};
    deps.observer = this;
    deps.make_policy = [this](std::string_view name, const compute::PolicyOptions& options) {
      return MakePolicy(name, options);
    };
    const compute::PolicyChoice choice{result_.policy, world_.options.selection};
    CAIRN_ASSIGN_OR_RETURN(conversation_, Conversation::Open(deps, id, choice));
    result_.reads_everything = conversation_->policy().selects_without_queries();
    CAIRN_RETURN_IF_ERROR(conversation_->Prefill(prompt, {}, never_, nullptr));
    LookAtIndex();
    LookAtClusters();
    return absl::OkStatus();
  }

  absl::Status Feed(std::int32_t token, std::span<const float> reference) {
    CAIRN_RETURN_IF_ERROR(conversation_->Step(token, logits_, never_));
    result_.divergence.Add(reference, logits_);
    const std::int64_t token_count = conversation_->token_count();
    if (token_count % world_.options.index_every == 0) LookAtIndex();
    const std::vector<ShiftSamples>& samples = result_.shift;
    if (!samples.empty() && token_count == 2 * samples.back().token_count) LookAtClusters();
    return absl::OkStatus();
  }

  PolicyResult Finish() {
    LookAtIndex();
    LookAtClusters();
    result_.heads = recall_.heads();
    if (watch_.has_value()) result_.clusters = watch_->Counts();
    return std::move(result_);
  }

  void LayerAttended(const compute::AttentionBatch& batch,
                     std::span<const compute::AttendedEntries> heads) override {
    recall_.LayerAttended(batch, heads);
    if (watch_.has_value()) watch_->LayerAttended(batch, heads);
  }

 private:
  absl::StatusOr<std::unique_ptr<compute::RetrievalPolicy>> MakePolicy(
      std::string_view name, const compute::PolicyOptions& options) {
    std::unique_ptr<compute::RetrievalPolicy> policy;
    CAIRN_ASSIGN_OR_RETURN(policy, compute::MakePolicy(name, options));
    if (!world_.options.follow_clusters || !policy->has_index()) return policy;
    dynakv_ = dynamic_cast<const compute::DynaKvPolicy*>(policy.get());
    watch_.emplace(world_.model.config(),
                   ClusterWatch::Options{.selection = options.selection,
                                         .first_position = world_.options.prefill_tokens,
                                         .together_every = world_.options.recall_every});
    shift_.assign(recall_.heads().size(),
                  ClusterShift(options.layout.head_dim, options.selection.cluster_target_entries,
                               options.selection.seed));
    return std::make_unique<WatchedPolicy>(std::move(policy), *watch_);
  }

  // Nothing as long as no clusters are there.
  void LookAtClusters() {
    if (!watch_.has_value()) return;
    ShiftSamples samples{.token_count = conversation_->token_count(),
                         .heads = std::vector<ShiftSample>(shift_.size())};
    const bool is_old =
        !result_.shift.empty() && result_.shift.back().token_count == samples.token_count;
    for (std::size_t row = 0; row < shift_.size(); ++row) {
      if (is_old || watch_->Clusters(row).empty()) return;
    }
    world_.model.pool().ParallelFor(std::ssize(shift_), [&](std::int64_t index) {
      const std::size_t row = static_cast<std::size_t>(index);
      samples.heads[row] = shift_[row].Sample(KeysOf(row), compute::kSinkTokens,
                                              watch_->stored_end(row), watch_->Clusters(row));
    });
    result_.shift.push_back(std::move(samples));
  }

  // As the policy sees them.
  std::vector<float> KeysOf(std::size_t row) const {
    const std::span<const float> kept = recall_.keys(row);
    std::vector<float> keys(kept.begin(), kept.end());
    const std::int64_t head_count = world_.model.config().kv_head_count;
    const std::int64_t number = static_cast<std::int64_t>(row);
    if (dynakv_ != nullptr) {
      dynakv_
          ->metric(static_cast<std::int32_t>(number / head_count),
                   static_cast<std::int32_t>(number % head_count))
          .StretchKeys(keys);
    }
    return keys;
  }

  void LookAtIndex() {
    const std::int64_t token_count = conversation_->token_count();
    compute::PolicyStatistics statistics = conversation_->policy().statistics();
    const bool is_new = result_.index.empty() || result_.index.back().token_count < token_count;
    if (!statistics.heads.empty() && is_new) {
      result_.index.push_back({token_count, std::move(statistics)});
    }
  }

  EvalWorld& world_;
  AttentionRecall recall_;
  std::optional<ClusterWatch> watch_;
  std::vector<ClusterShift> shift_;                // by (layer, KV head)
  const compute::DynaKvPolicy* dynakv_ = nullptr;  // of the conversation, if it is one
  std::vector<float> logits_;
  compute::StopSignal never_;
  std::unique_ptr<Conversation> conversation_;
  PolicyResult result_;
};

absl::Status AddPrompt(Reference& reference, std::span<const std::int32_t> prompt,
                       std::int64_t chunk_tokens) {
  while (!prompt.empty()) {
    const std::size_t count = std::min(prompt.size(), static_cast<std::size_t>(chunk_tokens));
    CAIRN_RETURN_IF_ERROR(reference.Add(prompt.first(count)));
    prompt = prompt.subspan(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<PolicyResult>> Evaluate(compute::Model& model,
                                                   std::span<const std::int32_t> tokens,
                                                   const EvalOptions& options,
                                                   const EvalProgress& progress) {
  CAIRN_RETURN_IF_ERROR(Check(options, std::ssize(tokens), model.config()));
  // One thread runs all conversations in turn: a step has no others to wait for.
  const auto no_time = [](compute::ForwardScheduler::Clock::duration) {
    return compute::ForwardScheduler::Clock::duration::zero();
  };
  compute::ForwardScheduler scheduler(model, options.chunk_tokens, no_time);
  EvalWorld world{.model = model,
                  .options = options,
                  .identity = IdentityHere(model.config(), options.kv_format),
                  .session_options = {},
                  .scheduler = scheduler,
                  .node = nullptr};
  world.session_options.kv_format = options.kv_format;
  world.session_options.prefill_chunk_tokens = options.chunk_tokens;
  CAIRN_RETURN_IF_ERROR(world.session_options.Validate());
  CAIRN_ASSIGN_OR_RETURN(world.node, compute::MakeRamKvNode({}));

  const std::span<const std::int32_t> prompt =
      tokens.first(static_cast<std::size_t>(options.prefill_tokens));
  const std::span<const std::int32_t> fed = tokens.subspan(prompt.size());
  Reference reference(model, options.kv_format, std::ssize(tokens));
  CAIRN_RETURN_IF_ERROR(AddPrompt(reference, prompt, options.chunk_tokens));
  std::vector<std::unique_ptr<PolicyRun>> runs;
  for (const std::string& policy : options.policies) {
    runs.push_back(std::make_unique<PolicyRun>(world, policy));
    CAIRN_RETURN_IF_ERROR(runs.back()->Start(prompt));
  }
  for (std::size_t i = 0; i < fed.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(reference.Add(fed.subspan(i, 1)));
    for (const std::unique_ptr<PolicyRun>& run : runs) {
      CAIRN_RETURN_IF_ERROR(run->Feed(fed[i], reference.logits()));
    }
    if (progress) progress(static_cast<std::int64_t>(i) + 1, std::ssize(fed));
  }
  std::vector<PolicyResult> results;
  results.reserve(runs.size());
  for (const std::unique_ptr<PolicyRun>& run : runs) results.push_back(run->Finish());
  return results;
}

}  // namespace cairn::eval
