#include "compute-node/eval/trace_replay.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "compute-node/eval/eval_node.h"
#include "compute-node/eval/trace_rows.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/session/attention/attention_scratch.h"
#include "compute-node/session/attention/stored_attention.h"
#include "compute-node/session/options.h"

namespace cairn::eval {
namespace {

// What the attention kernels take.
constexpr std::int64_t kHeadDimMultiple = 8;
// Numbers of one token's queries in a layer: a chunk of them is in memory.
constexpr std::int64_t kQueryNumbersMax = compute::kEmbeddingLengthMax;
constexpr std::uint16_t kF16Exponent = 0x7c00;

absl::Status CheckRows(const char* what, const std::vector<std::uint16_t>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(), [](std::uint16_t bits) {
    return (bits & kF16Exponent) == kF16Exponent;
  });
  if (found == rows.end()) return absl::OkStatus();
  return InvalidArgument("replay: number {} of the trace's {} is not finite", found - rows.begin(),
                         what);
}

absl::Status CheckReplay(const Trace& trace, const ReplayOptions& options) {
  CAIRN_CHECK_GE(options.chunk_tokens, 1);
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_RETURN_IF_ERROR(trace.Validate());
  if (options.selection.estimate_percent > 0) {
    return InvalidArgument("replay: clusters are estimated by values, and a trace has none");
  }
  if (options.follow_clusters) {
    return InvalidArgument("replay: clusters are followed where a model runs only");
  }
  if (trace.head_dim % kHeadDimMultiple != 0 || trace.head_dim > compute::kHeadDimMax) {
    return InvalidArgument("replay: heads of {} numbers: it must be a multiple of {}, at most {}",
                           trace.head_dim, kHeadDimMultiple, compute::kHeadDimMax);
  }
  const compute::ModelConfig config = ConfigOf(trace);
  if (config.query_length() > kQueryNumbersMax) {
    return InvalidArgument("replay: {} numbers in the queries of one token and layer, at most {}",
                           config.query_length(), kQueryNumbersMax);
  }
  if (trace.steps.empty() || trace.steps.back() < trace.prompt_count) {
    return InvalidArgument(
        "replay: the trace has no queries behind its {} tokens of prompt, so that there is nothing "
        "to measure: record it with a shorter --prompt, or with --generate",
        trace.prompt_count);
  }
  CAIRN_RETURN_IF_ERROR(CheckRows("keys", trace.keys));
  return CheckRows("queries", trace.queries);
}

std::vector<HeadName> NamesOf(const Trace& trace) {
  std::vector<HeadName> names;
  for (const std::int32_t layer : trace.layers) {
    for (const std::int32_t head : trace.kv_heads) names.push_back({layer, head});
  }
  return names;
}

// What the runs share.
struct ReplayWorld {
  const Trace& trace;
  const ReplayOptions& options;
  const compute::ModelConfig& config;
  ThreadPool& pool;
  EvalNode node;
  TraceRows rows;
  compute::PassScratch scratch;
  // A prompt's output goes nowhere here: that it attends only itself saves the reading. The rest is
  // as in any session.
  compute::SessionOptions session_options{.predict_selection = false, .local_prompts = true};
  compute::KvMemory memory{};
};

// The trace under one policy.
class ReplayRun {
 public:
  ReplayRun(ReplayWorld& world, const std::string& policy)
      : world_(world),
        measure_(world.options, policy,
                 {.first_position = world.trace.prompt_count,
                  .every = world.options.recall_every,
                  .positions = world.rows.StepsBehindPrompt()},
                 world.config, NamesOf(world.trace), world.pool) {}

  absl::Status Open();
  // All of it, as Conversation::Prefill stores one.
  absl::Status StorePrompt();
  // The next token.
  absl::Status Step();
  PolicyResult Finish() { return measure_.Finish(kv_->token_count()); }

 private:
  compute::PolicyOptions PolicyOptionsHere() const;
  absl::Status Pass(std::int64_t token_count);
  absl::Status Checkpoint();

  ReplayWorld& world_;
  PolicyMeasure measure_;
  compute::StopSignal never_;
  std::unique_ptr<compute::KvSession> session_;
  std::unique_ptr<compute::RetrievalPolicy> policy_;
  std::optional<compute::StoredAttention> kv_;
  std::int64_t saved_count_ = 0;  // tokens of the last checkpoint
};

compute::PolicyOptions ReplayRun::PolicyOptionsHere() const {
  compute::PolicyOptions options;
  options.layout = world_.node.served().base.layout;
  options.group_size = world_.trace.group_size;
  options.rotary_pairs = world_.options.rotary_pairs.value_or(options.rotary_pairs);
  options.selection = world_.options.selection;
  options.part_bytes_max = world_.node.node().part_bytes_max();
  options.fetch_slice_bytes = world_.session_options.fetch_slice_bytes;
  return options;
}

absl::Status ReplayRun::Open() {
  CAIRN_ASSIGN_OR_RETURN(const SessionRef session, world_.node.Create());
  CAIRN_ASSIGN_OR_RETURN(session_, world_.node.node().Open(session));
  compute::StoredPolicy nothing;
  nothing.choice = compute::PolicyChoice{measure_.policy(), world_.options.selection}.Normalised();
  CAIRN_ASSIGN_OR_RETURN(policy_, measure_.MakePolicy(nothing.choice.name, PolicyOptionsHere()));
  if (policy_->traits().learns_from_prompts) {
    return InvalidArgument(
        "replay: policy {} learns from what prompts attend, which a trace does not have: compare "
        "it "
        "with --model",
        measure_.policy());
  }
  const bool learns = policy_->traits().learns_from_queries && world_.rows.prompt_step_count() > 0;
  if (learns && !world_.options.rotary_pairs.has_value()) {
    return InvalidArgument(
        "replay: policy {} learns from the prompt's queries, and a trace does not say which "
        "numbers of a head its model turns together: add --rotary-pairs adjacent (llama) or halves "
        "(qwen2)",
        measure_.policy());
  }
  kv_.emplace(world_.session_options, world_.config, world_.pool, world_.scratch, *session_,
              *policy_, nothing.choice, world_.memory, &measure_);
  std::string random_state;
  return kv_->Restore(std::move(nothing), random_state);
}

absl::Status ReplayRun::Pass(std::int64_t token_count) {
  CAIRN_RETURN_IF_ERROR(kv_->StartPass(token_count, never_, nullptr));
  absl::Status status;
  for (int layer = 0; layer < world_.config.layer_count && status.ok(); ++layer) {
    status = kv_->Attend(world_.rows.Load(layer, kv_->token_count(), token_count));
  }
  if (status.ok()) {
    kv_->CommitPass();
  } else {
    kv_->AbandonPass();
  }
  return status;
}

// Where a conversation takes one too: what is stored is then stored in the same operations.
absl::Status ReplayRun::Checkpoint() {
  CAIRN_RETURN_IF_ERROR(kv_->StageCheckpoint(never_));
  cairn::Checkpoint checkpoint;
  checkpoint.token_count = kv_->token_count();
  checkpoint.token_ids_start = saved_count_;
  // A trace has no ids, and nobody reads them.
  checkpoint.token_ids.resize(static_cast<std::size_t>(kv_->token_count() - saved_count_));
  checkpoint.next_cluster_ids = policy_->keeper().NextClusterIds();
  saved_count_ = kv_->token_count();
  CAIRN_RETURN_IF_ERROR(session_->Send(std::move(checkpoint)));
  CAIRN_RETURN_IF_ERROR(session_->WaitForCheckpoint().status());
  kv_->CheckpointDone();
  return absl::OkStatus();
}

absl::Status ReplayRun::StorePrompt() {
  const std::int64_t prompt_count = world_.trace.prompt_count;
  const std::int64_t chunk_tokens = world_.options.chunk_tokens;
  while (kv_->token_count() < prompt_count) {
    CAIRN_RETURN_IF_ERROR(Pass(std::min(chunk_tokens, prompt_count - kv_->token_count())));
    CAIRN_RETURN_IF_ERROR(Checkpoint());
  }
  if (prompt_count > chunk_tokens && world_.session_options.recluster_prompts) {
    CAIRN_ASSIGN_OR_RETURN(const bool changed, kv_->Regroup(never_));
    if (changed) CAIRN_RETURN_IF_ERROR(Checkpoint());
  }
  measure_.PromptDone(prompt_count);
  return absl::OkStatus();
}

absl::Status ReplayRun::Step() {
  CAIRN_RETURN_IF_ERROR(Pass(1));
  measure_.StepDone(kv_->token_count());
  return absl::OkStatus();
}

}  // namespace

ReplayCounts CountsOf(const Trace& trace) {
  const TraceRows rows(trace);
  return {.token_count = trace.steps.back() + std::int64_t{1},
          .step_count = std::ssize(trace.steps) - rows.prompt_step_count(),
          .prompt_query_count = rows.prompt_step_count()};
}

absl::StatusOr<std::vector<PolicyResult>> Replay(const Trace& trace, const ReplayOptions& given,
                                                 ThreadPool& pool, const EvalProgress& progress) {
  CAIRN_RETURN_IF_ERROR(CheckReplay(trace, given));
  ReplayOptions options = given;
  options.selection.select_ahead = false;
  options.chunk_tokens = std::clamp<std::int64_t>(trace.prompt_count, 1, options.chunk_tokens);
  const compute::ModelConfig config = ConfigOf(trace);
  CAIRN_ASSIGN_OR_RETURN(EvalNode node, EvalNode::Make(config, options.kv_format));
  ReplayWorld world{.trace = trace,
                    .options = options,
                    .config = config,
                    .pool = pool,
                    .node = std::move(node),
                    .rows = TraceRows(trace),
                    .scratch = compute::PassScratch(config, options.chunk_tokens)};

  std::vector<std::unique_ptr<ReplayRun>> runs;
  for (const std::string& policy : options.policies) {
    runs.push_back(std::make_unique<ReplayRun>(world, policy));
    CAIRN_RETURN_IF_ERROR(runs.back()->Open());
  }
  for (const std::unique_ptr<ReplayRun>& run : runs) CAIRN_RETURN_IF_ERROR(run->StorePrompt());
  const std::int64_t step_count = CountsOf(trace).token_count - trace.prompt_count;
  for (std::int64_t step = 0; step < step_count; ++step) {
    for (const std::unique_ptr<ReplayRun>& run : runs) CAIRN_RETURN_IF_ERROR(run->Step());
    if (progress) progress(step + 1, step_count);
  }
  std::vector<PolicyResult> results;
  results.reserve(runs.size());
  for (const std::unique_ptr<ReplayRun>& run : runs) results.push_back(run->Finish());
  return results;
}

}  // namespace cairn::eval
