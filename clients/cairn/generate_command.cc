// cairn generate
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "clients/cairn/text_format.h"

namespace cairn::cli {
namespace {

constexpr std::int64_t kFileBytesMax = std::int64_t{16} << 20;

struct Options {
  std::string socket;
  std::string prompt;
  std::string file;
  GenerateOptions generate;
  bool json = false;
  bool stats = false;
  bool progress = false;
};

std::string_view ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kContext:
      return "context";
  }
  return "";
}

void PrintJson(const GenerateResult& result, const std::vector<std::int32_t>& ids) {
  const auto ms = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  fmt::print(
      "{{\"conversation_id\": {}, \"text\": {}, \"token_ids\": [{}], \"finish_reason\": \"{}\", "
      "\"reused_token_count\": {}, \"prompt_token_count\": {}, \"generated_token_count\": {}, "
      "\"conversation_token_count\": {}, \"tokens_per_s\": {:.3f}, \"ttft_ms\": {:.3f}, "
      "\"prefill_ms\": {:.3f}, \"decode_ms\": {:.3f}, \"kv_flash_bytes\": {}, "
      "\"kv_dram_bytes\": {}, \"kv_read_bytes\": {}, \"io_engine\": {}, "
      "\"reconnect_count\": {}}}\n",
      result.conversation_id, JsonString(result.text), fmt::join(ids, ", "),
      ReasonName(result.reason), result.reused_token_count, result.prompt_token_count,
      result.generated_token_count, result.conversation_token_count, result.TokensPerSecond(),
      ms(result.first_token_time), ms(result.prefill_time), ms(result.decode_time),
      result.kv_flash_bytes, result.kv_dram_peak_bytes, result.kv_read_bytes,
      JsonString(result.io_engine), result.reconnect_count);
}

absl::Status Run(Options& options) {
  GenerateOptions& generate = options.generate;
  if (!options.file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(generate.prompt, ReadTextFile(options.file, kFileBytesMax));
  }
  generate.prompt += options.prompt;
  if (generate.prompt.empty()) {
    return InvalidArgument("there is no prompt: give one, or --file");
  }
  const InterruptCancels interrupt;
  ProgressLine progress(options.progress ? ProgressLine::Show::kAlways
                                         : ProgressLine::Show::kIfTerminal);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client,
                         ConnectWhenReady(options.socket, progress, interrupt.token()));
  std::int64_t conversation = 0;
  std::vector<std::int32_t> ids;
  bool text_open = false;  // the last line on the screen is not ended
  generate.on_started = [&](std::int64_t id, std::int64_t, std::int64_t) { conversation = id; };
  generate.on_prefill = [&](std::int64_t done, std::int64_t total) {
    progress.Update("reading the prompt", done, total, "tokens");
  };
  generate.on_token = [&](std::int32_t id) { ids.push_back(id); };
  generate.on_text = [&](std::string_view text) {
    progress.Clear();
    if (options.json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
    text_open = text.back() != '\n';
  };
  const absl::StatusOr<GenerateResult> result = client->Generate(generate, interrupt.token());
  progress.Clear();
  if (text_open) fmt::print("\n");
  std::fflush(stdout);
  if (!result.ok()) {
    if (conversation == 0 || generate.ephemeral) return result.status();
    return Annotate(result.status(), fmt::format("conversation {}", conversation));
  }
  if (options.json) PrintJson(*result, ids);
  if (options.stats) {
    fmt::print(stderr, "conversation={} prompt_tokens={} reused_tokens={} generated_tokens={}\n",
               result->conversation_id, result->prompt_token_count, result->reused_token_count,
               result->generated_token_count);
    fmt::print(stderr, "{}\n", SummaryLine(*result));
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand(
      "generate",
      "Generate text. The keys and values of the conversation go to flash; it can be continued "
      "later with --conversation.");
  auto options = std::make_shared<Options>();
  GenerateOptions& generate = options->generate;
  command.add_option("prompt", options->prompt, "The prompt");
  command.add_option("--file", options->file, "A text to put before the prompt; -: standard input");
  command.add_option("--tokens", generate.tokens_max, "Tokens to generate at most")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--temperature", generate.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 10.0));
  command.add_option("--top-k", generate.top_k, "Only the K most likely tokens; 0: all")
      ->check(CLI::Range(0, 1 << 22));
  command.add_option("--top-p", generate.top_p, "Only the likeliest with this probability; 0: all")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--seed", generate.seed, "Equal seeds give equal text; 0: a random one");
  command.add_option("--stop", generate.stop, "End before this text; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)  // what follows the text is the prompt
      ->take_all();
  command.add_option("--conversation", generate.conversation_id, "Continue this conversation")
      ->check(CLI::PositiveNumber);
  command.add_option("--label", generate.label, "Shown by `cairn sessions`");
  command.add_flag("--ephemeral", generate.ephemeral, "Delete the conversation at the end");
  command.add_flag("--special", generate.parse_special,
                   "Take special tokens such as <|eot_id|> in the prompt as tokens");
  command.add_flag("--ignore-end", generate.ignore_end,
                   "Generate on after the model's end-of-text token");
  command.add_flag("--json", options->json, "Print one JSON object at the end instead of text");
  command.add_flag("--stats", options->stats, "Print a summary on standard error");
  command.add_flag("--progress", options->progress, "Show progress also without a terminal");
  AddSocketOption(command, options->socket);
  SetAction(command, result, [options] { return Run(*options); });
}

}  // namespace cairn::cli
