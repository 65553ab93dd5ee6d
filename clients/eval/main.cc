// cairn-policy-eval: how near each retrieval policy is to full attention on one text. See
// docs/policy-eval.md.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "clients/cairn/input.h"
#include "clients/cairn/model_input.h"
#include "clients/cairn/output.h"
#include "clients/eval/document.h"
#include "clients/eval/policy_eval.h"
#include "clients/eval/report.h"
#include "common/log/log.h"
#include "compute-node/model/tokenizer.h"

namespace cairn::eval {
namespace {

constexpr int kFormat = 1;
// Progress is told so many times, to a person.
constexpr std::int64_t kProgressCount = 50;

struct Arguments {
  std::string model;
  std::string text;
  std::string tasks;
  std::int64_t document = 0;
  std::int64_t tokens = 0;  // 0: all
  std::string select = "3%";
  std::string estimate = "0%";
  std::string kv_format = "f16";
  std::string json;
  int threads = 0;
  EvalOptions eval;
};

void AddOptions(CLI::App& app, Arguments& arguments) {
  compute::SelectionOptions& selection = arguments.eval.selection;
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 32);
  const CLI::Range count(std::int64_t{0}, std::int64_t{1} << 32);
  app.add_option("--model", arguments.model, "The model in GGUF format")->required();
  app.add_option("--policy", arguments.eval.policies, "Policies, in this order")
      ->delimiter(',')
      ->required();
  auto* text = app.add_option("--text", arguments.text, "The text, as a file");
  auto* tasks = app.add_option("--tasks", arguments.tasks, "Or a tasks file, of which a document");
  text->excludes(tasks);
  app.add_option("--document", arguments.document, "Its number in the file, from 0")
      ->needs(tasks)
      ->check(count);
  app.add_option("--prefill", arguments.eval.prefill_tokens, "Tokens of the prompt")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--tokens", arguments.tokens, "Tokens fed behind it; 0: all")
      ->check(count)
      ->capture_default_str();
  app.add_option("--select", arguments.select, "Share of the context that is attended")
      ->capture_default_str();
  app.add_option("--select-min", selection.select_tokens_min, "But so many tokens at least")
      ->capture_default_str();
  app.add_option("--select-max", selection.select_tokens_max, "And so many at most")
      ->capture_default_str();
  app.add_option("--cluster-entries", selection.cluster_target_entries, "Mean size of a cluster")
      ->capture_default_str();
  app.add_option("--estimate", arguments.estimate,
                 "Share of the clusters not read that are attended by their means")
      ->capture_default_str();
  app.add_flag(
      "--select-ahead,!--no-select-ahead", selection.select_ahead,
      "Whether dynakv selects by queries that the layer before foresees; it does by default");
  app.add_option("--seed", selection.seed, "Of whatever is random")->capture_default_str();
  app.add_option("--kv-format", arguments.kv_format,
                 "How keys and values are stored: f32, f16, q8 or q4")
      ->capture_default_str();
  app.add_option("--every", arguments.eval.recall_every, "Measure recall at each so manieth token")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--clusters", arguments.eval.follow_clusters,
               "Follow the clusters, and compare them with others; takes minutes");
  app.add_option("--threads", arguments.threads, "Threads that compute; 0: one for each processor")
      ->check(CLI::Range(0, cli::kThreadsMax))
      ->capture_default_str();
  app.add_option("--json", arguments.json, "File for all figures, replaced if it exists");
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
  const std::int64_t wanted = arguments.eval.prefill_tokens + arguments.tokens;
  if (arguments.tokens > 0 && std::ssize(tokens) < wanted) {
    return InvalidArgument("the text has {} tokens, but --prefill and --tokens ask for {}",
                           tokens.size(), wanted);
  }
  if (arguments.tokens > 0) tokens.resize(static_cast<std::size_t>(wanted));
  return tokens;
}

nlohmann::ordered_json Manifest(const std::vector<std::string>& command_line) {
  utsname system{};
  ::uname(&system);
  return {{"version", CAIRN_VERSION},
          {"start_time",
           fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::now()))},
          {"command_line", command_line},
          {"machine",
           fmt::format("{}, {} processors", system.machine, std::thread::hardware_concurrency())},
          {"kernel", system.release}};
}

nlohmann::ordered_json Configuration(const Arguments& arguments, std::int64_t token_count) {
  const EvalOptions& eval = arguments.eval;
  nlohmann::ordered_json json = {{"model", arguments.model}};
  if (arguments.tasks.empty()) {
    json["text"] = arguments.text;
  } else {
    json["tasks"] = arguments.tasks;
    json["document"] = arguments.document;
  }
  json["token_count"] = token_count;
  json["prefill"] = eval.prefill_tokens;
  json["select_percent"] = eval.selection.select_percent;
  json["select_min"] = eval.selection.select_tokens_min;
  json["select_max"] = eval.selection.select_tokens_max;
  json["cluster_entries"] = eval.selection.cluster_target_entries;
  json["estimate_percent"] = eval.selection.estimate_percent;
  json["select_ahead"] = eval.selection.select_ahead;
  json["seed"] = eval.selection.seed;
  json["kv_format"] = arguments.kv_format;
  json["every"] = eval.recall_every;
  json["clusters"] = eval.follow_clusters;
  return json;
}

// Replaces the file as a whole.
absl::Status WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(1) + "\n";
  const std::string part = path + ".part";
  cli::FileHandle file(std::fopen(part.c_str(), "wb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("open {}", part));
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!written || std::fclose(file.release()) != 0) {
    return ErrnoStatus(errno, fmt::format("write {}", part));
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("rename {} to {}", part, path));
  }
  return absl::OkStatus();
}

void TellProgress(std::int64_t fed_count, std::int64_t all_count) {
  const bool is_due = fed_count % std::max<std::int64_t>(1, all_count / kProgressCount) == 0;
  if (::isatty(STDERR_FILENO) == 0 || (!is_due && fed_count < all_count)) return;
  cli::WriteNote(fmt::format("\r{} of {} tokens", fed_count, all_count));
  if (fed_count == all_count) cli::WriteNote("\n");
}

absl::Status Run(Arguments& arguments, const std::vector<std::string>& command_line) {
  EvalOptions& eval = arguments.eval;
  CAIRN_ASSIGN_OR_RETURN(eval.selection.select_percent, ParseShare("--select", arguments.select));
  CAIRN_ASSIGN_OR_RETURN(eval.selection.estimate_percent,
                         ParseShare("--estimate", arguments.estimate));
  const std::optional<KvFormat> format = ParseKvFormat(arguments.kv_format);
  if (!format.has_value()) {
    return InvalidArgument("--kv-format {}: it must be {}", arguments.kv_format, kKvFormatNames);
  }
  eval.kv_format = *format;
  compute::ModelOptions model_options;
  model_options.thread_count = cli::ThreadCount(arguments.threads);
  model_options.batch_tokens_max = eval.chunk_tokens;
  const nlohmann::ordered_json manifest = Manifest(command_line);
  auto model = compute::Model::Load(arguments.model, model_options);
  if (!model.ok()) return cli::AboutFile(model.status(), arguments.model);
  std::vector<std::int32_t> tokens;
  CAIRN_ASSIGN_OR_RETURN(tokens, TokensOf(arguments, **model));
  std::vector<PolicyResult> results;
  CAIRN_ASSIGN_OR_RETURN(results, Evaluate(**model, tokens, eval, TellProgress));
  nlohmann::ordered_json json = {{"program", "policy-eval"}, {"format", kFormat}};
  json["manifest"] = manifest;
  json["configuration"] = Configuration(arguments, std::ssize(tokens));
  json["policies"] = nlohmann::ordered_json::array();
  for (const PolicyResult& result : results) {
    json["policies"].push_back(ToJson(result, (*model)->config()));
  }
  if (!arguments.json.empty()) CAIRN_RETURN_IF_ERROR(WriteJson(arguments.json, json));
  return cli::WriteOutput(Table(results));
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Runs a text under retrieval policies and under full attention, and says how far "
      "each is from it.",
      "cairn-policy-eval"};
  Arguments arguments;
  AddOptions(app, arguments);
  try {
    app.parse(argc, argv);
    if (arguments.text.empty() && arguments.tasks.empty()) {
      throw CLI::RequiredError("--text or --tasks");
    }
  } catch (const CLI::Success& success) {
    std::ostringstream text;
    app.exit(success, text);
    return cli::WriteOutput(text.str()).ok() ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    cli::WriteNote(fmt::format("cairn-policy-eval: {}; see --help\n", error.what()));
    return 2;
  }
  const absl::Status status = Run(arguments, {argv, argv + argc});
  if (status.ok()) return 0;
  cli::WriteNote(fmt::format("cairn-policy-eval: {}\n", Message(status)));
  return 1;
}

}  // namespace
}  // namespace cairn::eval

int main(int argc, char** argv) {
  try {
    if (!cairn::InitLogging("cairn-policy-eval", "error").ok()) return 1;
    return cairn::eval::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairn-policy-eval: %s\n", error.what());
    return 1;
  }
}
