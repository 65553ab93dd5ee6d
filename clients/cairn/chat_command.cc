// cairn chat
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "clients/cairn/number_check.h"
#include "clients/cairn/output.h"
#include "clients/cpp/request_check.h"

namespace cairn::cli {
namespace {

struct ChatArguments {
  std::string socket;
  GenerateOptions generate;
  std::string system;
};

struct Line {
  std::string text;             // its first kPromptBytesMax bytes
  std::int64_t size_bytes = 0;  // of all
};

// A line of standard input; nullopt at its end, CANCELLED on Ctrl-C.
absl::StatusOr<std::optional<Line>> ReadLine() {
  const InterruptCancels interrupt;
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) WriteNote("> ");
  Line line;
  int c = EOF;
  while (!interrupt.interrupted() && (c = std::fgetc(stdin)) != EOF && c != '\n') {
    if (line.size_bytes++ < kPromptBytesMax) line.text += static_cast<char>(c);
  }
  const int error = errno;
  if (c == '\n' && !interrupt.interrupted()) return line;
  if (terminal) WriteNote("\n");
  if (interrupt.interrupted()) return Cancelled("interrupted");
  if (std::ferror(stdin) != 0) return ErrnoStatus(error, "read standard input");
  if (line.size_bytes > 0) return line;
  return std::nullopt;
}

// Talks with one conversation, line by line.
class Chat {
 public:
  Chat(CairnClient& client, ModelDescription model, ChatArguments arguments)
      : client_(client),
        model_(std::move(model)),
        system_(std::move(arguments.system)),
        generate_(std::move(arguments.generate)) {}

  absl::Status Run();

 private:
  // To the end of standard input. A line that is refused does not end it.
  absl::Status Talk();
  // How a line becomes a prompt: a message if the model has a chat template.
  absl::Status SetUpTemplate();
  void SetPrompt(const std::string& line);
  // INVALID_ARGUMENT if the line cannot be sent; the chat can go on without it.
  absl::Status CheckLine(const Line& line);
  absl::Status CheckForged(const std::string& line);
  absl::Status Turn(const std::string& line);
  // One answer, printed as it comes.
  absl::Status Generate(InterruptCancels& interrupt);
  absl::StatusOr<bool> HasSpecial(const std::string& text);

  CairnClient& client_;
  const ModelDescription model_;
  const std::string system_;
  GenerateOptions generate_;
  std::string before_;
  std::string after_;
  // The turn that began the conversation was cancelled before its prompt was stored.
  bool may_be_gone_ = false;
};

absl::Status Chat::SetUpTemplate() {
  generate_.stop = model_.turn_stop;
  if (!model_.chat_template.empty()) return absl::OkStatus();
  if (!system_.empty()) {
    return InvalidArgument(
        "--system needs a chat template, and the model has none that cairn-compute-node knows: "
        "choose one with cairn-compute-node --chat-template NAME");
  }
  const std::size_t turn = model_.turn_template.find("{}");
  if (turn == std::string::npos) {
    return Internal("the turn template of cairn-compute-node has no {{}}");
  }
  before_ = model_.turn_template.substr(0, turn);
  after_ = model_.turn_template.substr(turn + 2);
  CAIRN_ASSIGN_OR_RETURN(generate_.parse_special, HasSpecial(before_ + after_));
  return absl::OkStatus();
}

void Chat::SetPrompt(const std::string& line) {
  if (model_.chat_template.empty()) {
    generate_.prompt = before_ + line + after_;
    return;
  }
  generate_.messages.clear();
  if (generate_.conversation_id == 0 && !system_.empty()) {
    generate_.messages.push_back({"system", system_});
  }
  generate_.messages.push_back({"user", line});
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

absl::Status Chat::CheckLine(const Line& line) {
  const std::int64_t bytes_max =
      kPromptBytesMax - std::ssize(before_) - std::ssize(after_) - std::ssize(system_);
  if (line.size_bytes > bytes_max) {
    return InvalidArgument("this line has {} bytes: at most {}; send it in parts", line.size_bytes,
                           bytes_max);
  }
  CAIRN_RETURN_IF_ERROR(CheckUtf8("this line", line.text));
  return CheckForged(line.text);
}

absl::Status Chat::Generate(InterruptCancels& interrupt) {
  const bool starts = generate_.conversation_id == 0;
  bool has_text = false;
  ProgressLine progress(ProgressLine::Show::kIfTerminal);
  generate_.on_started = [this](std::int64_t id, std::int64_t, std::int64_t) {
    generate_.conversation_id = id;
  };
  generate_.on_prefill = [&](std::int64_t done, std::int64_t total) {
    progress.Update("reading", done, total, "tokens");
  };
  generate_.on_text = [&](std::string_view text) {
    has_text = true;
    progress.Clear();
    if (!WriteOutput(text).ok()) interrupt.Cancel();
  };
  absl::Status status = client_.Generate(generate_, interrupt.token()).status();
  if (status.ok() || has_text) {
    may_be_gone_ = false;
  } else if (starts && absl::IsCancelled(status)) {
    may_be_gone_ = true;
  }
  return status;
}

absl::Status Chat::Turn(const std::string& line) {
  InterruptCancels interrupt;
  SetPrompt(line);
  absl::Status status = Generate(interrupt);
  if (absl::IsNotFound(status) && may_be_gone_) {
    generate_.conversation_id = 0;
    SetPrompt(line);
    status = Generate(interrupt);
  }
  if (absl::IsInvalidArgument(status)) return status;  // nothing came
  CAIRN_RETURN_IF_ERROR(WriteOutput("\n"));
  // Ctrl-C ends the answer, not the chat.
  return interrupt.interrupted() ? absl::OkStatus() : status;
}

absl::Status Chat::Talk() {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  std::int64_t refused_count = 0;
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<Line> line, ReadLine());
    if (!line.has_value()) break;
    if (line->size_bytes == 0) continue;
    absl::Status status = CheckLine(*line);
    if (status.ok()) status = Turn(line->text);
    if (absl::IsInvalidArgument(status)) {
      WriteProblem("cairn", Message(status));
      ++refused_count;
      continue;
    }
    CAIRN_RETURN_IF_ERROR(status);
  }
  // A person has seen it; a script is told.
  if (terminal || refused_count == 0) return absl::OkStatus();
  return InvalidArgument("lines that were refused: {}", refused_count);
}

absl::Status Chat::Run() {
  CAIRN_RETURN_IF_ERROR(SetUpTemplate());
  absl::Status status = Talk();
  if (generate_.conversation_id != 0 && !may_be_gone_ && !OutputReaderIsGone()) {
    WriteNote(fmt::format("conversation={}: go on with cairn chat --conversation {}\n",
                          generate_.conversation_id, generate_.conversation_id));
  }
  return status;
}

absl::Status RunChat(const ChatArguments& options) {
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--label", options.generate.label));
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--policy", options.generate.policy));
  CAIRN_RETURN_IF_ERROR(CheckPrompt("--system", options.system));
  if (!options.system.empty() && options.generate.conversation_id != 0) {
    return InvalidArgument(
        "--system is for a new conversation: conversation {} has its beginning already",
        options.generate.conversation_id);
  }
  std::unique_ptr<CairnClient> client;
  ModelDescription model;
  {
    const InterruptCancels interrupt;
    ProgressLine progress(ProgressLine::Show::kIfTerminal);
    CAIRN_ASSIGN_OR_RETURN(client, ConnectWhenReady(options.socket, progress, interrupt.token()));
    CAIRN_ASSIGN_OR_RETURN(model, client->GetModel());
  }
  return Chat(*client, std::move(model), options).Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand(
      "chat",
      "Talk with the model, line by line; Ctrl-D ends. The conversation stays on flash and can be "
      "continued, also after a restart of the daemons.");
  auto options = std::make_shared<ChatArguments>();
  GenerateOptions& generate = options->generate;
  generate.tokens_max = 1024;
  command.add_option("--conversation", generate.conversation_id, "Continue this conversation")
      ->check(ConversationNumber());
  command.add_option("--tokens", generate.tokens_max, "Tokens of an answer at most")
      ->check(WholeNumber(1, 1 << 24))
      ->capture_default_str();
  command.add_option(
      "--system", options->system,
      "What the model is told before your first line; for models with a chat template");
  AddSamplingOptions(command, generate);
  AddRetrievalOptions(command, generate);
  command.add_option("--label", generate.label, "Shown by `cairn sessions list`");
  AddSocketOption(command, options->socket);
  command.footer(
      "examples:\n"
      "  cairn chat\n"
      "  cairn chat --system \"Answer in one sentence.\"\n"
      "  cairn chat --conversation 3");
  SetAction(command, result, [options] { return RunChat(*options); });
}

}  // namespace cairn::cli
