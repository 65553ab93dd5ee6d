// cairn generate
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "clients/cairn/interrupted_turn.h"
#include "clients/cpp/request_check.h"
#include "common/base/json_string.h"
#include "common/base/printable.h"
#include "common/command/input.h"
#include "common/command/number_check.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

struct GenerateArguments {
  std::string socket;
  std::string prompt;
  std::string file;
  GenerateOptions generate;
  std::int32_t logprob_count = -1;  // likely tokens to show; -1: no log probabilities at all
  bool json = false;
  bool stats = false;
  bool progress = false;
};

// In the order of the enumerators.
constexpr std::array kReasonNames = {"end", "length", "stop", "context"};
static_assert(static_cast<std::size_t>(FinishReason::kContext) + 1 == kReasonNames.size());

// What was told of one token.
struct LikelyToken {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
};

// 1234 " door" -0.1053
std::string Readable(const TokenLogprob& token) {
  return fmt::format("{} \"{}\" {:.4f}", token.token_id, EscapeControls(token.bytes),
                     token.logprob);
}

// The token, and behind it those that were likely in its place.
std::string ReadableLine(const LikelyToken& likely) {
  std::string line = Readable(likely.token);
  for (std::size_t i = 0; i < likely.top.size(); ++i) {
    line += (i == 0 ? "  | " : ", ") + Readable(likely.top[i]);
  }
  return line + "\n";
}

std::string JsonLogprob(const TokenLogprob& token) {
  // Bytes, because a token may end within a character.
  const std::vector<int> bytes(
      reinterpret_cast<const unsigned char*>(token.bytes.data()),
      reinterpret_cast<const unsigned char*>(token.bytes.data()) + token.bytes.size());
  return fmt::format("\"id\": {}, \"bytes\": [{}], \"logprob\": {:.6f}", token.token_id,
                     fmt::join(bytes, ", "), token.logprob);
}

std::string JsonLogprobs(const std::vector<LikelyToken>& tokens) {
  std::vector<std::string> parts;
  for (const LikelyToken& likely : tokens) {
    std::vector<std::string> top;
    for (const TokenLogprob& token : likely.top) top.push_back("{" + JsonLogprob(token) + "}");
    parts.push_back(
        fmt::format("{{{}, \"top\": [{}]}}", JsonLogprob(likely.token), fmt::join(top, ", ")));
  }
  return fmt::format("\"logprobs\": [{}], ", fmt::join(parts, ", "));
}

// `logprobs` is empty or a field with its comma.
std::string Json(const GenerateResult& result, const std::vector<std::int32_t>& ids,
                 const std::string& logprobs) {
  const auto ms = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  return fmt::format(
      "{{\"conversation_id\": {}, \"text\": {}, \"token_ids\": [{}], {}\"finish_reason\": \"{}\", "
      "\"reused_token_count\": {}, \"prompt_token_count\": {}, \"generated_token_count\": {}, "
      "\"conversation_token_count\": {}, \"tokens_per_s\": {:.3f}, \"queue_ms\": {:.3f}, "
      "\"ttft_ms\": {:.3f}, "
      "\"prefill_ms\": {:.3f}, \"decode_ms\": {:.3f}, \"io_ms\": {:.3f}, "
      "\"exposed_io_ms\": {:.3f}, \"kv_flash_bytes\": {}, "
      "\"kv_dram_bytes\": {}, \"kv_read_bytes\": {}, \"io_engine\": {}, "
      "\"reconnect_count\": {}, \"policy\": {}}}\n",
      result.conversation_id, JsonString(result.text), fmt::join(ids, ", "), logprobs,
      kReasonNames[static_cast<std::size_t>(result.reason)], result.reused_token_count,
      result.prompt_token_count, result.generated_token_count, result.conversation_token_count,
      result.TokensPerSecond(), ms(result.queue_time), ms(result.first_token_time),
      ms(result.prefill_time), ms(result.decode_time), ms(result.io_time),
      ms(result.exposed_io_time), result.kv_flash_bytes, result.kv_dram_peak_bytes,
      result.kv_read_bytes, JsonString(result.io_engine), result.reconnect_count,
      JsonString(result.policy));
}

// Whether standard input is a pipe or a file with something in it.
bool HasUnreadInput() {
  struct stat input {};
  int unread_bytes = 0;
  return ::fstat(STDIN_FILENO, &input) == 0 &&
         (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode)) &&
         ::ioctl(STDIN_FILENO, FIONREAD, &unread_bytes) == 0 && unread_bytes > 0;
}

// Puts the texts together; each is checked where its source is still known.
absl::Status ReadPrompt(GenerateArguments& options) {
  GenerateOptions& generate = options.generate;
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--label", generate.label));
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--policy", generate.policy));
  for (const std::string& text : generate.stop) CAIRN_RETURN_IF_ERROR(CheckUtf8("--stop", text));
  if (options.prompt.empty() && options.file.empty()) {
    if (::isatty(STDIN_FILENO) == 1) {
      throw CLI::ValidationError("there is no prompt: give one, or --file, or a text on its input");
    }
    options.file = "-";
  }
  if (options.prompt.empty() && options.file != "-" && HasUnreadInput()) {
    fmt::print(stderr,
               "cairn: standard input is not read, because --file is given: put what follows the "
               "file behind it, as in `cairn generate --file FILE \"QUESTION\"`\n");
  }
  if (!options.file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(generate.prompt, ReadInput(options.file, kPromptBytesMax));
    CAIRN_RETURN_IF_ERROR(CheckUtf8(InputName(options.file), generate.prompt));
  }
  CAIRN_RETURN_IF_ERROR(CheckUtf8("the prompt", options.prompt));
  generate.prompt += options.prompt;
  if (generate.prompt.empty()) {
    return InvalidArgument("there is no prompt: {} is empty", InputName(options.file));
  }
  return CheckPrompt("the prompt", generate.prompt);
}

std::string SummaryLine(const GenerateResult& result) {
  return fmt::format(
      "summary: tokens_per_s={:.2f} ttft_ms={:.1f} kv_flash_bytes={} kv_dram_bytes={} io_engine={} "
      "policy={}",
      result.TokensPerSecond(),
      std::chrono::duration<double, std::milli>(result.first_token_time).count(),
      result.kv_flash_bytes, result.kv_dram_peak_bytes, result.io_engine, result.policy);
}

void WriteStats(const GenerateResult& result) {
  WriteNote(
      fmt::format("conversation={} prompt_tokens={} reused_tokens={} generated_tokens={}\n{}\n",
                  result.conversation_id, result.prompt_token_count, result.reused_token_count,
                  result.generated_token_count, SummaryLine(result)));
}

// An error names its conversation; a cancellation says what that keeps, and how to go on.
absl::Status AboutConversation(const absl::Status& status, const TurnProgress& turn,
                               CairnClient& client, ProgressLine& progress,
                               const std::string& socket) {
  if (!absl::IsCancelled(status)) {
    return Annotate(status, fmt::format("conversation {}", turn.conversation_id));
  }
  const KeptTurn kept = AskWhatIsKept(client, turn, progress);
  if (kept.conversation_is_gone) return Cancelled("cancelled {}", kept.text);
  return Cancelled("cancelled{} {}{}", turn.has_text ? ":" : "", kept.text,
                   HowToGoOn(kept, turn.conversation_id, socket));
}

absl::Status Run(GenerateArguments& options) {
  GenerateOptions& generate = options.generate;
  CAIRN_RETURN_IF_ERROR(ReadPrompt(options));
  InterruptCancels interrupt;
  ProgressLine progress(options.progress ? ProgressLine::Show::kAlways
                                         : ProgressLine::Show::kIfTerminal);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client,
                         ConnectWhenReady(options.socket, progress, interrupt.token()));
  TurnProgress turn;
  std::vector<std::int32_t> ids;
  bool text_open = false;  // the last line on the screen is not ended
  generate.on_started = [&](std::int64_t id, std::int64_t reused, std::int64_t prompt) {
    turn = {.conversation_id = id, .reused_count = reused, .prompt_count = prompt};
    if (!generate.ephemeral) {
      interrupt.SetLastWords(WordsOfUnknownEnd("generate", id, options.socket));
    }
  };
  generate.on_prefill = [&](std::int64_t done, std::int64_t total) {
    turn.done_count = done;
    progress.Update("reading the prompt", done, total, "tokens");
    if (done == total) progress.Say("the prompt is read, and now sorted ...");
  };
  generate.on_waiting = [&](std::string_view reason) {
    const std::string words = fmt::format("waiting: {}", reason);
    text_open ? WriteNote(fmt::format("\n({})\n", words)) : progress.Say(words);
  };
  generate.on_recomputing = [&](std::int64_t done, std::int64_t total, std::string_view reason) {
    turn.recomputes = done < total;
    ShowRecomputing(progress, done, total, reason);
  };
  generate.on_token = [&](std::int32_t id) {
    turn.has_text = true;
    ids.push_back(id);
  };
  std::vector<LikelyToken> likely;
  const bool lines = options.logprob_count >= 0 && !options.json;  // one for each token
  if (options.logprob_count >= 0) {
    generate.top_logprob_count = options.logprob_count;
    generate.on_logprob = [&](const TokenLogprob& token, const std::vector<TokenLogprob>& top) {
      progress.Clear();
      if (!lines) {
        likely.push_back({token, top});
      } else if (!WriteOutput(ReadableLine({token, top})).ok()) {
        interrupt.Cancel();
      }
    };
  }
  generate.on_text = [&](std::string_view text) {
    progress.Clear();
    if (options.json || lines) return;
    text_open = text.back() != '\n';
    // Nobody gets what would be computed.
    if (!WriteOutput(ForTheReader(text)).ok()) interrupt.Cancel();
  };
  const absl::StatusOr<GenerateResult> result = client->Generate(generate, interrupt.token());
  progress.Clear();
  absl::Status status = text_open ? WriteOutput("\n") : OutputStatus();
  // Without output there is a cancellation that was none of the user's.
  if (status.ok()) status = result.status();
  if (turn.recomputes && absl::IsCancelled(status)) {
    status = Cancelled("cancelled {}", kKeptOfRecomputing);
  } else if (turn.conversation_id != 0 && !generate.ephemeral) {
    status = AboutConversation(status, turn, *client, progress, options.socket);
  }
  CAIRN_RETURN_IF_ERROR(status);
  if (options.json) {
    CAIRN_RETURN_IF_ERROR(
        WriteOutput(Json(*result, ids, options.logprob_count >= 0 ? JsonLogprobs(likely) : "")));
  }
  if (options.stats) WriteStats(*result);
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand(
      "generate",
      "Go on with a text. The prompt is taken as it is: to ask a model that was made for "
      "conversations, use `cairn chat`. Keys and values go to flash; --conversation goes on "
      "later.");
  auto options = std::make_shared<GenerateArguments>();
  GenerateOptions& generate = options->generate;
  command.add_option("prompt", options->prompt,
                     "The prompt; without it and --file standard input, unless that is a terminal");
  command.add_option("--file", options->file, "A text to put before the prompt; -: standard input");
  command.add_option("--tokens", generate.tokens_max, "Tokens to generate at most")
      ->check(WholeNumber(0, 1 << 24))
      ->capture_default_str();
  AddSamplingOptions(command, generate);
  AddRetrievalOptions(command, generate);
  command.add_option("--stop", generate.stop, "End before this text; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)  // what follows the text is the prompt
      ->take_all();
  command
      .add_option("--stop-token", generate.stop_token_ids,
                  "End before the token with this id (`cairn model tokenize`); may be repeated")
      ->option_text("ID")
      ->check(CLI::NonNegativeNumber)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command.add_option("--conversation", generate.conversation_id, "Continue this conversation")
      ->check(ConversationNumber());
  command.add_option("--label", generate.label, "Shown by `cairn sessions list`");
  command.add_flag("--ephemeral", generate.ephemeral, "Delete the conversation at the end");
  command.add_flag("--special", generate.parse_special,
                   "Take special tokens such as <|eot_id|> in the prompt as tokens");
  command.add_flag("--ignore-end", generate.ignore_end,
                   "Generate on after the model's end-of-text token");
  command
      .add_option(
          "--logprobs", options->logprob_count,
          "Print a line for each token instead of text: its id, itself, the logarithm of its "
          "probability, and the same of the N most likely tokens")
      ->check(WholeNumber(0, 20));
  command.add_flag("--json", options->json, "Print one JSON object at the end instead of text");
  command.add_flag("--stats", options->stats, "Print a summary on standard error");
  command.add_flag("--progress", options->progress, "Show progress also without a terminal");
  AddSocketOption(command, options->socket);
  command.footer(
      "examples:\n"
      "  cairn generate \"The capital of France is\" --tokens 20\n"
      "  cairn generate --file book.txt \"In short, this book says that\"\n"
      "  cat question.txt | cairn generate --json");
  SetAction(command, result, [options] { return Run(*options); });
}

}  // namespace cairn::cli
