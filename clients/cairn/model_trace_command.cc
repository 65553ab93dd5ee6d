// cairn model trace: records the keys and queries of a run.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "common/command/number_check.h"
#include "common/command/output.h"
#include "common/trace/trace.h"
#include "compute-node/command/model_input.h"
#include "compute-node/command/trace_recorder.h"
#include "compute-node/model/forward/dense_attention.h"

namespace cairn::cli {
namespace {

struct TraceOptions {
  std::string model;
  std::string tokens;
  std::string output;
  std::vector<std::int32_t> layers;    // empty: all
  std::vector<std::int32_t> kv_heads;  // empty: all
  std::int64_t prompt_count = -1;      // -1: all tokens of the file
  std::int64_t generate_count = 0;
  std::int64_t query_from = -1;  // -1: behind the prompt
  std::int64_t query_every = 1;
  int threads = 0;
};

// All of them when none was asked for. Trace::Validate tells numbers that the model does not have.
std::vector<std::int32_t> Chosen(std::vector<std::int32_t> asked, std::int64_t count) {
  if (asked.empty()) {
    asked.resize(static_cast<std::size_t>(count));
    std::iota(asked.begin(), asked.end(), 0);
  }
  std::sort(asked.begin(), asked.end());
  return asked;
}

std::int64_t QueryFrom(const TraceOptions& options, const Trace& trace) {
  return options.query_from < 0 ? trace.prompt_count : options.query_from;
}

// The shape of the run, before there are any rows.
absl::StatusOr<Trace> ShapeOf(const TraceOptions& options, const compute::ModelConfig& config,
                              std::int64_t given_count) {
  Trace trace;
  trace.layer_count = static_cast<std::int32_t>(config.layer_count);
  trace.kv_head_count = static_cast<std::int32_t>(config.kv_head_count);
  trace.group_size = static_cast<std::int32_t>(config.group_size());
  trace.head_dim = static_cast<std::int32_t>(config.head_dim);
  trace.layers = Chosen(options.layers, config.layer_count);
  trace.kv_heads = Chosen(options.kv_heads, config.kv_head_count);
  trace.token_count = given_count + options.generate_count;
  trace.prompt_count = options.prompt_count < 0 ? given_count : options.prompt_count;
  trace.origin = fmt::format("{} {}, {} tokens given, {} generated", config.architecture,
                             config.name, given_count, options.generate_count);
  if (trace.prompt_count > given_count) {
    return InvalidArgument("--prompt {}: only {} tokens are given", trace.prompt_count,
                           given_count);
  }
  const std::int64_t query_from = QueryFrom(options, trace);
  if (query_from > trace.token_count) {
    return InvalidArgument("--query-from {}: the trace has {} tokens", query_from,
                           trace.token_count);
  }
  const std::int64_t step_count =
      (trace.token_count - query_from + options.query_every - 1) / options.query_every;
  const std::int64_t values = std::ssize(trace.layers) * std::ssize(trace.kv_heads) *
                              config.head_dim *
                              (trace.token_count + step_count * config.group_size());
  if (2 * values > kTraceBytesMax) {
    return InvalidArgument(
        "a trace of {} bytes: at most {}; record fewer layers (--layers), or the queries of fewer "
        "steps (--query-every)",
        2 * values, kTraceBytesMax);
  }
  const bool has_heads = trace.kv_heads.back() < config.kv_head_count;
  if (trace.layers.back() >= config.layer_count || !has_heads) {
    return InvalidArgument("the model has layers 0 to {} and KV heads 0 to {}",
                           config.layer_count - 1, config.kv_head_count - 1);
  }
  return trace;
}

absl::Status Run(compute::Model& model, std::vector<std::int32_t> tokens,
                 const TraceOptions& options, Trace& trace) {
  compute::DenseAttention attention(model.config(), KvFormat::kF16, trace.token_count,
                                    model.pool());
  TraceRecorder recorder(attention, QueryFrom(options, trace), options.query_every, trace);
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  for (std::int64_t first = 0; first < trace.token_count;) {
    const std::int64_t count = std::min(kBatchTokens, std::ssize(tokens) - first);
    const bool generate = first + count == std::ssize(tokens) && first + count < trace.token_count;
    compute::ForwardOutput output;
    if (generate) output.last_logits = logits;
    CAIRN_RETURN_IF_ERROR(model.Forward(
        std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
        first, recorder, output, nullptr));
    first += count;
    if (!generate) continue;
    const auto best = std::max_element(logits.begin(), logits.end());
    tokens.push_back(static_cast<std::int32_t>(best - logits.begin()));
  }
  return absl::OkStatus();
}

absl::Status Record(const TraceOptions& options) {
  const std::string inputs[] = {options.model, options.tokens};
  CAIRN_RETURN_IF_ERROR(CheckIsNoInput(options.output, inputs));
  std::vector<std::int32_t> tokens;
  CAIRN_ASSIGN_OR_RETURN(tokens, ReadTokens(options.tokens));
  std::unique_ptr<compute::Model> model;
  CAIRN_ASSIGN_OR_RETURN(model, LoadModel(options.model, options.threads));
  CAIRN_RETURN_IF_ERROR(
      CheckTokens(tokens, options.generate_count, options.tokens, model->config()));
  Trace trace;
  CAIRN_ASSIGN_OR_RETURN(trace, ShapeOf(options, model->config(), std::ssize(tokens)));
  CAIRN_RETURN_IF_ERROR(Run(*model, std::move(tokens), options, trace));
  CAIRN_RETURN_IF_ERROR(WriteTraceFile(options.output, trace));
  return WriteOutput(
      fmt::format("{}: {} tokens, {} of them prompt; {} layers, {} KV heads, queries "
                  "of {} steps\n",
                  options.output, trace.token_count, trace.prompt_count, trace.layers.size(),
                  trace.kv_heads.size(), trace.steps.size()));
}

}  // namespace

void AddModelTraceCommand(CLI::App& group, CommandResult& result) {
  CLI::App* command =
      group.add_subcommand("trace",
                           "Run a model over token ids and record its keys and queries: material "
                           "for finding out what a\n"
                           "policy or a layout of the store would have done, without the model.");
  auto options = std::make_shared<TraceOptions>();
  command->add_option("MODEL", options->model, "A model in GGUF format")->required();
  command
      ->add_option("TOKENS", options->tokens, "The token ids, each a little-endian int32 (4 bytes)")
      ->required();
  command->add_option("OUT", options->output, "File to write, replaced if it exists")->required();
  command
      ->add_option("--layers", options->layers,
                   "Layers to record, such as 0,5; without it all of them")
      ->delimiter(',')
      ->check(WholeNumber(0, 1 << 20));
  command->add_option("--kv-heads", options->kv_heads, "KV heads to record; without it all of them")
      ->delimiter(',')
      ->check(WholeNumber(0, 1 << 20));
  command
      ->add_option("--prompt", options->prompt_count,
                   "How many of the tokens are the prompt; those behind count as decoded. "
                   "Without it all of them are")
      ->check(WholeNumber(0, kTraceTokensMax));
  command
      ->add_option("--generate", options->generate_count,
                   "Tokens to decode greedily behind those of the file")
      ->check(WholeNumber(0, kTraceTokensMax))
      ->capture_default_str();
  command
      ->add_option("--query-from", options->query_from,
                   "The first position whose queries are recorded. Without it that behind the "
                   "prompt")
      ->check(WholeNumber(0, kTraceTokensMax));
  command
      ->add_option("--query-every", options->query_every,
                   "From there on, record the queries of one token in so many")
      ->check(WholeNumber(1, kTraceTokensMax))
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads,
                   "Threads that compute; 0: one for each processor. The result does not depend on "
                   "it")
      ->check(WholeNumber(0, kThreadsMax))
      ->capture_default_str();
  command->footer("example: cairn model trace model.gguf tokens.i32 run.trace --layers 0,5");
  SetAction(*command, result, [options] { return Record(*options); });
}

}  // namespace cairn::cli
