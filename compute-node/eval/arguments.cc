#include "compute-node/eval/arguments.h"

#include <string_view>

#include "common/command/number_check.h"
#include "compute-node/command/model_input.h"

namespace cairn::eval {
namespace {

constexpr std::string_view kHalves = "halves";
constexpr std::int64_t kCountMax = std::int64_t{1} << 32;

// What runs: a text under a model, or a trace.
void AddInputs(CLI::App& app, Arguments& arguments) {
  const CLI::Validator positive = cli::WholeNumber(1, kCountMax);
  const CLI::Validator count = cli::WholeNumber(0, kCountMax);
  auto* model = app.add_option("--model", arguments.model, "The model in GGUF format");
  auto* text = app.add_option("--text", arguments.text, "The text, as a file");
  auto* tasks = app.add_option("--tasks", arguments.tasks, "Or a tasks file, of which a document");
  text->excludes(tasks);
  auto* document =
      app.add_option("--document", arguments.document, "Its number in the file, from 0")
          ->needs(tasks)
          ->check(count);
  auto* prefill = app.add_option("--prefill", arguments.eval.prefill_tokens, "Tokens of the prompt")
                      ->check(positive)
                      ->capture_default_str();
  auto* tokens = app.add_option("--tokens", arguments.tokens, "Tokens fed behind it; 0: all")
                     ->check(count)
                     ->capture_default_str();
  auto* trace = app.add_option("--trace", arguments.trace,
                               "Instead of a model and a text: a trace (cairn model trace). Layers "
                               "select by their own queries: in a trace nothing is foreseen");
  for (CLI::Option* option : {model, text, tasks, document, prefill, tokens}) {
    trace->excludes(option);
  }
  app.add_option("--rotary-pairs", arguments.rotary_pairs,
                 "Which numbers of a head the trace's model turns together: adjacent (llama) or "
                 "halves (qwen2); needed where the trace has queries of the prompt")
      ->needs(trace)
      ->check(CLI::IsMember({std::string("adjacent"), std::string(kHalves)}));
}

void AddSelection(CLI::App& app, Arguments& arguments) {
  compute::SelectionOptions& selection = arguments.eval.selection;
  app.add_option("--select", arguments.select, "Share of the context that is attended")
      ->capture_default_str();
  app.add_option("--select-min", selection.select_tokens_min, "But so many tokens at least")
      ->capture_default_str();
  app.add_option("--select-max", selection.select_tokens_max, "And so many at most")
      ->capture_default_str();
  app.add_option("--cluster-entries", selection.cluster_target_entries, "Mean size of a cluster")
      ->capture_default_str();
  app.add_option("--small-key-bits", arguments.eval.small_key_bits,
                 "kvswap: bits of each 32 axes of small keys, as 2211; empty: as the model has it")
      ->excludes(app.get_option("--trace"));
  app.add_option("--estimate", arguments.estimate,
                 "Share of the clusters not read that are attended by their means")
      ->capture_default_str()
      ->excludes(app.get_option("--trace"));
  app.add_flag(
      "--select-ahead,!--no-select-ahead", selection.select_ahead,
      "Whether dynakv selects by queries that the layer before foresees; it does by default, but "
      "not with --trace");
  app.add_option("--seed", selection.seed, "Of whatever is random")->capture_default_str();
  app.add_option("--kv-format", arguments.kv_format,
                 "How keys and values are stored: f32, f16, q8 or q4")
      ->capture_default_str();
}

// "3%" or "3".
absl::StatusOr<double> ParseShare(std::string_view option, std::string text) {
  if (text.ends_with('%')) text.pop_back();
  double share = 0;
  if (text.empty() || !CLI::detail::lexical_cast(text, share)) {
    return InvalidArgument("{} {}: write a share such as 3%", option, text);
  }
  return share;
}

}  // namespace

void AddOptions(CLI::App& app, Arguments& arguments) {
  const CLI::Validator positive = cli::WholeNumber(1, kCountMax);
  AddInputs(app, arguments);
  app.add_option("--policy", arguments.eval.policies, "Policies, in this order")->delimiter(',');
  AddSelection(app, arguments);
  app.add_option("--every", arguments.eval.recall_every,
                 "Measure recall at one token in so many; of a trace, of those with queries")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--clusters", arguments.eval.follow_clusters,
               "Follow the clusters, and compare them with others; takes minutes")
      ->excludes(app.get_option("--trace"));
  app.add_option("--threads", arguments.threads, "Threads that compute; 0: one for each processor")
      ->check(cli::WholeNumber(0, cli::kThreadsMax))
      ->capture_default_str();
  app.add_option("--json", arguments.json, "File for all figures, replaced if it exists");
  app.add_option("--selections", arguments.selections,
                 "File for what was attended where recall is measured, replaced if it exists");
  auto* key_runs =
      app.add_option("--key-runs", arguments.key_runs,
                     "Instead of policies: how many keys a run-length code with these tolerances "
                     "would save of the text, and how far it is from full attention")
          ->delimiter(',');
  for (const char* const other : {"--policy", "--trace", "--prefill", "--every", "--clusters",
                                  "--selections", "--select", "--select-min", "--select-max",
                                  "--small-key-bits", "--estimate", "--select-ahead", "--seed"}) {
    key_runs->excludes(app.get_option(other));
  }
}

void CheckOptions(const CLI::App& app, const Arguments& arguments) {
  if (arguments.eval.policies.empty() && arguments.key_runs.empty()) {
    throw CLI::RequiredError("--policy");
  }
  if (!arguments.json.empty() && arguments.json == arguments.selections) {
    throw CLI::ValidationError("--selections", "it is the file of --json too");
  }
  if (!arguments.trace.empty()) {
    if (app.count("--select-ahead") > 0 && arguments.eval.selection.select_ahead) {
      throw CLI::ExcludesError("--trace", "--select-ahead");
    }
    return;
  }
  if (arguments.model.empty()) throw CLI::RequiredError("--model or --trace");
  if (arguments.text.empty() && arguments.tasks.empty()) {
    throw CLI::RequiredError("--text or --tasks");
  }
}

absl::Status ParseValues(Arguments& arguments) {
  EvalOptions& eval = arguments.eval;
  CAIRN_ASSIGN_OR_RETURN(eval.selection.select_percent, ParseShare("--select", arguments.select));
  CAIRN_ASSIGN_OR_RETURN(eval.selection.estimate_percent,
                         ParseShare("--estimate", arguments.estimate));
  const std::optional<KvFormat> format = ParseKvFormat(arguments.kv_format);
  if (!format.has_value()) {
    return InvalidArgument("--kv-format {}: it must be {}", arguments.kv_format, kKvFormatNames);
  }
  eval.kv_format = *format;
  return eval.selection.Validate();
}

ReplayOptions ReplayOptionsOf(const Arguments& arguments) {
  ReplayOptions replay;
  static_cast<MeasureOptions&>(replay) = arguments.eval;
  replay.selection.select_ahead = false;
  if (!arguments.rotary_pairs.empty()) {
    replay.rotary_pairs = arguments.rotary_pairs == kHalves ? compute::RotaryPairs::kHalves
                                                            : compute::RotaryPairs::kAdjacent;
  }
  return replay;
}

}  // namespace cairn::eval
