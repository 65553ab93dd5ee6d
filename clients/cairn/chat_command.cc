// cairn chat
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"

namespace cairn::cli {
namespace {

struct Options {
  std::string socket;
  GenerateOptions generate;
};

// Talks with one conversation, line by line.
class Chat {
 public:
  Chat(CairnClient& client, ModelDescription model, GenerateOptions generate)
      : client_(client), model_(std::move(model)), generate_(std::move(generate)) {}

  absl::Status Run();

 private:
  absl::Status SetUpTemplate();
  // A line of standard input; nullopt at its end, CANCELLED on Ctrl-C.
  static absl::StatusOr<std::optional<std::string>> ReadLine();
  absl::Status Turn(const std::string& line);
  absl::Status CheckForged(const std::string& line);
  absl::StatusOr<bool> HasSpecial(const std::string& text);

  CairnClient& client_;
  const ModelDescription model_;
  GenerateOptions generate_;
  std::string before_;
  std::string after_;
};

absl::Status Chat::SetUpTemplate() {
  const std::size_t turn = model_.turn_template.find("{}");
  if (turn == std::string::npos) {
    return Internal("the turn template of cairn-compute-node has no {{}}");
  }
  before_ = model_.turn_template.substr(0, turn);
  after_ = model_.turn_template.substr(turn + 2);
  CAIRN_ASSIGN_OR_RETURN(generate_.parse_special, HasSpecial(before_ + after_));
  generate_.stop = model_.turn_stop;
  return absl::OkStatus();
}

// Whether some of the text is the name of a special token.
absl::StatusOr<bool> Chat::HasSpecial(const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> added, client_.Tokenize("", true));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> parsed, client_.Tokenize(text, true));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> plain, client_.Tokenize(text, false));
  return parsed.size() != plain.size() + added.size();
}

absl::Status Chat::CheckForged(const std::string& line) {
  if (!generate_.parse_special) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const bool forged, HasSpecial(line));
  if (!forged) return absl::OkStatus();
  return InvalidArgument("this line contains a special token's name: put it in other words");
}

absl::Status Chat::Turn(const std::string& line) {
  CAIRN_RETURN_IF_ERROR(CheckForged(line));
  const InterruptCancels interrupt;
  ProgressLine progress(ProgressLine::Show::kIfTerminal);
  generate_.prompt = before_ + line + after_;
  generate_.on_started = [this](std::int64_t id, std::int64_t, std::int64_t) {
    generate_.conversation_id = id;
  };
  generate_.on_prefill = [&](std::int64_t done, std::int64_t total) {
    progress.Update("reading", done, total, "tokens");
  };
  generate_.on_text = [&](std::string_view text) {
    progress.Clear();
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  const absl::Status status = client_.Generate(generate_, interrupt.token()).status();
  progress.Clear();
  fmt::print("\n");
  std::fflush(stdout);
  // Ctrl-C ends the answer, not the chat.
  return interrupt.interrupted() ? absl::OkStatus() : status;
}

absl::StatusOr<std::optional<std::string>> Chat::ReadLine() {
  const InterruptCancels interrupt;
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) {
    fmt::print(stderr, "> ");
    std::fflush(stderr);
  }
  std::string line;
  if (std::getline(std::cin, line)) return line;
  if (terminal) fmt::print(stderr, "\n");
  if (interrupt.interrupted()) return Cancelled("interrupted");
  return std::nullopt;
}

absl::Status Chat::Run() {
  CAIRN_RETURN_IF_ERROR(SetUpTemplate());
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> line, ReadLine());
    if (!line.has_value()) break;
    if (line->empty()) continue;
    const absl::Status status = Turn(*line);
    // A person may try again; a script is told.
    if (status.code() == absl::StatusCode::kInvalidArgument && ::isatty(STDIN_FILENO) == 1) {
      fmt::print(stderr, "{}\n", Message(status));
      continue;
    }
    CAIRN_RETURN_IF_ERROR(status);
  }
  if (generate_.conversation_id != 0) {
    fmt::print(stderr, "conversation={}: go on with cairn chat --conversation {}\n",
               generate_.conversation_id, generate_.conversation_id);
  }
  return absl::OkStatus();
}

absl::Status RunChat(const Options& options) {
  std::unique_ptr<CairnClient> client;
  ModelDescription model;
  {
    const InterruptCancels interrupt;
    ProgressLine progress(ProgressLine::Show::kIfTerminal);
    CAIRN_ASSIGN_OR_RETURN(client, ConnectWhenReady(options.socket, progress, interrupt.token()));
    CAIRN_ASSIGN_OR_RETURN(model, client->GetModel());
  }
  return Chat(*client, std::move(model), options.generate).Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand(
      "chat",
      "Talk with the model, line by line; Ctrl-D ends. The conversation stays on flash and can be "
      "continued, also after a restart of the daemons.");
  auto options = std::make_shared<Options>();
  GenerateOptions& generate = options->generate;
  generate.tokens_max = 1024;
  command.add_option("--conversation", generate.conversation_id, "Continue this conversation")
      ->check(CLI::PositiveNumber);
  command.add_option("--tokens", generate.tokens_max, "Tokens of an answer at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--temperature", generate.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 10.0));
  command.add_option("--top-p", generate.top_p, "Only the likeliest with this probability; 0: all")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--seed", generate.seed, "Equal seeds give equal text; 0: a random one");
  command.add_option("--label", generate.label, "Shown by `cairn sessions`");
  AddSocketOption(command, options->socket);
  SetAction(command, result, [options] { return RunChat(*options); });
}

}  // namespace cairn::cli
