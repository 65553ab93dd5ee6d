// cairn-policy-eval: how near each retrieval policy is to full attention on one text, or what each
// would have attended of a recorded trace. See docs/policy-eval.md.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/command/output.h"
#include "common/log/log.h"
#include "compute-node/command/model_input.h"
#include "compute-node/eval/arguments.h"
#include "compute-node/eval/commit.h"
#include "compute-node/eval/document.h"
#include "compute-node/eval/key_runs_eval.h"
#include "compute-node/eval/output_file.h"
#include "compute-node/eval/policy_eval.h"
#include "compute-node/eval/report.h"
#include "compute-node/eval/run_manifest.h"
#include "compute-node/eval/trace_replay.h"
#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::eval {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;
// Progress is told so many times, to a person.
constexpr std::int64_t kProgressCount = 50;

absl::StatusOr<std::vector<std::int32_t>> TokensOf(const Arguments& arguments,
                                                   const compute::Model& model) {
  std::string text;
  if (arguments.tasks.empty()) {
    CAIRN_ASSIGN_OR_RETURN(text, ReadText(arguments.text));
  } else {
    CAIRN_ASSIGN_OR_RETURN(text, ReadTasksDocument(arguments.tasks, arguments.document));
  }
  const auto tokenizer = compute::Tokenizer::FromGguf(model.file());
  CAIRN_RETURN_IF_ERROR(cli::AboutFile(tokenizer.status(), arguments.model));
  std::vector<std::int32_t> tokens = (*tokenizer)->Encode(text, {});
  const std::int64_t prompt = arguments.key_runs.empty() ? arguments.eval.prefill_tokens : 0;
  const std::int64_t wanted = prompt + arguments.tokens;
  if (arguments.tokens > 0 && std::ssize(tokens) < wanted) {
    return InvalidArgument("the text has {} tokens, but --prefill and --tokens ask for {}",
                           tokens.size(), wanted);
  }
  if (arguments.tokens > 0) tokens.resize(static_cast<std::size_t>(wanted));
  return tokens;
}

void TellProgress(std::int64_t done_count, std::int64_t all_count) {
  static std::int64_t told_count = 0;
  const bool is_due = done_count - told_count >= all_count / kProgressCount;
  if (::isatty(STDERR_FILENO) == 0 || (!is_due && done_count < all_count)) return;
  told_count = done_count;
  cli::WriteNote(fmt::format("\r{} of {} tokens", done_count, all_count));
  if (done_count == all_count) cli::WriteNote("\n");
}

absl::StatusOr<std::unique_ptr<compute::Model>> LoadModel(const Arguments& arguments) {
  compute::ModelOptions options;
  options.thread_count = cli::ThreadCount(arguments.threads);
  options.batch_tokens_max = arguments.eval.chunk_tokens;
  auto model = compute::Model::Load(arguments.model, options);
  if (!model.ok()) return cli::AboutFile(model.status(), arguments.model);
  return model;
}

OrderedJson InputJson(const Arguments& arguments, std::size_t token_count) {
  OrderedJson input = {{"model", arguments.model}};
  if (arguments.tasks.empty()) {
    input["text"] = arguments.text;
  } else {
    input["tasks"] = arguments.tasks;
    input["document"] = arguments.document;
  }
  input["token_count"] = token_count;
  return input;
}

// Also fills what the configuration says of its input.
absl::StatusOr<std::vector<PolicyResult>> RunModel(const Arguments& arguments, OrderedJson& input) {
  std::unique_ptr<compute::Model> model;
  CAIRN_ASSIGN_OR_RETURN(model, LoadModel(arguments));
  std::vector<std::int32_t> tokens;
  CAIRN_ASSIGN_OR_RETURN(tokens, TokensOf(arguments, *model));
  std::vector<PolicyResult> results;
  CAIRN_ASSIGN_OR_RETURN(results, Evaluate(*model, tokens, arguments.eval, TellProgress));
  input = InputJson(arguments, tokens.size());
  input["prefill"] = arguments.eval.prefill_tokens;
  return results;
}

// The same.
absl::StatusOr<std::vector<PolicyResult>> RunTrace(const Arguments& arguments, OrderedJson& input) {
  CAIRN_ASSIGN_OR_RETURN(const Trace trace, ReadTraceFile(arguments.trace));
  ThreadPool pool(cli::ThreadCount(arguments.threads));
  std::vector<PolicyResult> results;
  CAIRN_ASSIGN_OR_RETURN(results, Replay(trace, ReplayOptionsOf(arguments), pool, TellProgress));
  const ReplayCounts counts = CountsOf(trace);
  input = {{"trace", arguments.trace},
           {"origin", trace.origin},
           {"layers", trace.layers},
           {"kv_heads", trace.kv_heads},
           {"token_count", counts.token_count},
           {"prefill", trace.prompt_count},
           {"steps", counts.step_count},
           {"prompt_queries", counts.prompt_query_count}};
  if (!arguments.rotary_pairs.empty()) input["rotary_pairs"] = arguments.rotary_pairs;
  return results;
}

OrderedJson Configuration(const Arguments& arguments, OrderedJson input) {
  const EvalOptions& eval = arguments.eval;
  OrderedJson json = std::move(input);
  json["select_percent"] = eval.selection.select_percent;
  json["select_min"] = eval.selection.select_tokens_min;
  json["select_max"] = eval.selection.select_tokens_max;
  json["cluster_entries"] = eval.selection.cluster_target_entries;
  json["small_key_bits"] = eval.small_key_bits;
  json["estimate_percent"] = eval.selection.estimate_percent;
  json["select_ahead"] = arguments.trace.empty() && eval.selection.select_ahead;
  json["seed"] = eval.selection.seed;
  json["kv_format"] = arguments.kv_format;
  json["every"] = eval.recall_every;
  json["clusters"] = eval.follow_clusters;
  return json;
}

absl::Status WriteFigures(const Arguments& arguments, const RunManifest& manifest,
                          OrderedJson configuration, std::string_view name, OrderedJson figures) {
  if (arguments.json.empty()) return absl::OkStatus();
  OrderedJson json = {{"program", "policy-eval"}, {"format", kFormat}};
  json["manifest"] = manifest.ToJson();
  json["configuration"] = std::move(configuration);
  json[std::string(name)] = std::move(figures);
  // Names of files and origins of traces may be anything.
  const auto replace = OrderedJson::error_handler_t::replace;
  return ReplaceFile(arguments.json, json.dump(1, ' ', false, replace) + "\n");
}

absl::Status RunPolicies(Arguments& arguments, const RunManifest& manifest) {
  std::optional<OutputFile> selections;
  if (!arguments.selections.empty()) {
    CAIRN_RETURN_IF_ERROR(selections.emplace(arguments.selections).Open());
    arguments.eval.selections = &*selections;
  }
  OrderedJson input;
  std::vector<PolicyResult> results;
  CAIRN_ASSIGN_OR_RETURN(
      results, arguments.trace.empty() ? RunModel(arguments, input) : RunTrace(arguments, input));
  if (selections.has_value()) CAIRN_RETURN_IF_ERROR(selections->Commit());
  OrderedJson figures = OrderedJson::array();
  for (const PolicyResult& result : results) figures.push_back(ToJson(result));
  CAIRN_RETURN_IF_ERROR(WriteFigures(arguments, manifest,
                                     Configuration(arguments, std::move(input)), "policies",
                                     std::move(figures)));
  return cli::WriteOutput(Table(results));
}

absl::Status RunKeyRuns(const Arguments& arguments, const RunManifest& manifest) {
  std::unique_ptr<compute::Model> model;
  CAIRN_ASSIGN_OR_RETURN(model, LoadModel(arguments));
  std::vector<std::int32_t> tokens;
  CAIRN_ASSIGN_OR_RETURN(tokens, TokensOf(arguments, *model));
  const KeyRunsOptions options{.tolerances = arguments.key_runs,
                               .kv_format = arguments.eval.kv_format,
                               .cluster_entries = arguments.eval.selection.cluster_target_entries};
  KeyRunsResult result;
  CAIRN_ASSIGN_OR_RETURN(result, MeasureKeyRuns(*model, tokens, options, TellProgress));
  OrderedJson configuration = InputJson(arguments, tokens.size());
  configuration["cluster_entries"] = options.cluster_entries;
  configuration["kv_format"] = arguments.kv_format;
  CAIRN_RETURN_IF_ERROR(
      WriteFigures(arguments, manifest, std::move(configuration), "key_runs", ToJson(result)));
  return cli::WriteOutput(Table(result));
}

absl::Status Run(Arguments& arguments, const std::vector<std::string>& command_line) {
  for (const std::string& output : {arguments.json, arguments.selections}) {
    const std::string inputs[] = {arguments.model, arguments.text, arguments.tasks,
                                  arguments.trace};
    if (!output.empty()) CAIRN_RETURN_IF_ERROR(cli::CheckIsNoInput(output, inputs));
  }
  const RunManifest manifest(
      {.version = CAIRN_VERSION, .commit = BuiltFrom(), .command_line = command_line});
  return arguments.key_runs.empty() ? RunPolicies(arguments, manifest)
                                    : RunKeyRuns(arguments, manifest);
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Runs a text under retrieval policies and under full attention, and says how far "
      "each is from it.\nOr replays the keys and queries of a trace under them, without the model.",
      "cairn-policy-eval"};
  app.set_version_flag("--version", "cairn-policy-eval " CAIRN_VERSION);
  app.footer(
      "examples:\n"
      "  cairn-policy-eval --model model.gguf --text book.txt --policy dynakv,no-cluster\n"
      "  cairn-policy-eval --trace run.trace --policy dynakv --json figures.json\n"
      "  cairn-policy-eval --model model.gguf --text book.txt --key-runs 0.01,0.05");
  Arguments arguments;
  AddOptions(app, arguments);
  try {
    app.parse(argc, argv);
    CheckOptions(app, arguments);
    const absl::Status values = ParseValues(arguments);
    if (!values.ok()) throw CLI::ValidationError(Message(values));
  } catch (const CLI::Success& success) {
    std::ostringstream text;
    app.exit(success, text);
    return cli::WriteOutput(text.str()).ok() ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    cli::WriteProblem("cairn-policy-eval", fmt::format("{}; see --help", error.what()));
    return 2;
  }
  const absl::Status status = Run(arguments, {argv, argv + argc});
  if (status.ok()) return 0;
  cli::WriteProblem("cairn-policy-eval", Message(status));
  return 1;
}

}  // namespace
}  // namespace cairn::eval

int main(int argc, char** argv) {
  try {
    if (!cairn::InitLogging("cairn-policy-eval", "error").ok()) return 1;
    return cairn::eval::Main(argc, argv);
  } catch (const std::exception& error) {
    cairn::cli::WriteProblem("cairn-policy-eval", error.what());
    return 1;
  }
}
