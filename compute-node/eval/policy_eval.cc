#include "compute-node/eval/policy_eval.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "compute-node/eval/eval_node.h"
#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/session/conversation.h"

namespace cairn::eval {
namespace {

using compute::Conversation;

absl::Status Check(const EvalOptions& options, std::int64_t token_count,
                   const compute::ModelConfig& config) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
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
  Reference(compute::Model& model, const EvalOptions& options, std::int64_t token_count_max)
      : model_(model),
        pass_tokens_max_(static_cast<std::size_t>(options.chunk_tokens)),
        attention_(model.config(), options.kv_format, token_count_max, model.pool()),
        logits_(static_cast<std::size_t>(model.config().vocab_size)) {}

  absl::Status Add(std::span<const std::int32_t> tokens) {
    compute::ForwardOutput output;
    output.last_logits = logits_;
    while (!tokens.empty()) {
      const auto some = tokens.first(std::min(tokens.size(), pass_tokens_max_));
      CAIRN_RETURN_IF_ERROR(model_.Forward(some, token_count_, attention_, output, nullptr));
      token_count_ += std::ssize(some);
      tokens = tokens.subspan(some.size());
    }
    return absl::OkStatus();
  }
  std::span<const float> logits() const { return logits_; }

 private:
  compute::Model& model_;
  const std::size_t pass_tokens_max_;
  compute::DenseAttention attention_;
  std::vector<float> logits_;
  std::int64_t token_count_ = 0;
};

// What the runs share.
struct EvalWorld {
  compute::Model& model;
  const EvalOptions& options;
  EvalNode node;
  compute::SessionOptions session_options;
  compute::ForwardScheduler& scheduler;
  compute::KvMemory memory{};
};

// The text under one policy.
class PolicyRun {
 public:
  PolicyRun(EvalWorld& world, const std::string& policy)
      : world_(world),
        measure_(
            world.options, policy,
            {.first_position = world.options.prefill_tokens, .every = world.options.recall_every},
            world.model.config(), HeadNamesOf(world.model.config()), world.model.pool()),
        logits_(static_cast<std::size_t>(world.model.config().vocab_size)) {}

  absl::Status Start(std::span<const std::int32_t> prompt) {
    SessionRef session;
    CAIRN_ASSIGN_OR_RETURN(session, world_.node.Create());
    compute::ConversationDeps deps{world_.node.served(), world_.node.node(), world_.scheduler,
                                   world_.session_options, world_.memory};
    deps.observer = &measure_;
    deps.make_policy = [this](std::string_view name, const compute::PolicyOptions& options) {
      return measure_.MakePolicy(name, options);
    };
    const compute::PolicyChoice choice{measure_.policy(), world_.options.selection};
    CAIRN_ASSIGN_OR_RETURN(
        conversation_, Conversation::Open(deps, session, compute::PolicyRequest::Exactly(choice)));
    CAIRN_RETURN_IF_ERROR(conversation_->Prefill(prompt, {}, never_, nullptr));
    measure_.PromptDone(conversation_->token_count());
    return absl::OkStatus();
  }

  absl::Status Feed(std::int32_t token, std::span<const float> reference) {
    CAIRN_RETURN_IF_ERROR(conversation_->Step(token, logits_, never_));
    measure_.divergence().Add(reference, logits_);
    measure_.StepDone(conversation_->token_count());
    return absl::OkStatus();
  }

  PolicyResult Finish() { return measure_.Finish(conversation_->token_count()); }

 private:
  EvalWorld& world_;
  PolicyMeasure measure_;
  std::vector<float> logits_;
  compute::StopSignal never_;
  std::unique_ptr<Conversation> conversation_;
};

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
  CAIRN_ASSIGN_OR_RETURN(EvalNode node, EvalNode::Make(model.config(), options.kv_format));
  EvalWorld world{.model = model,
                  .options = options,
                  .node = std::move(node),
                  .session_options = {},
                  .scheduler = scheduler};
  world.session_options.kv_format = options.kv_format;
  world.session_options.small_key_bits = options.small_key_bits;
  world.session_options.prefill_chunk_tokens = options.chunk_tokens;
  CAIRN_RETURN_IF_ERROR(world.session_options.Validate());

  const std::span<const std::int32_t> prompt =
      tokens.first(static_cast<std::size_t>(options.prefill_tokens));
  const std::span<const std::int32_t> fed = tokens.subspan(prompt.size());
  Reference reference(model, options, std::ssize(tokens));
  CAIRN_RETURN_IF_ERROR(reference.Add(prompt));
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
