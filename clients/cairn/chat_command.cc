// cairn chat
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/chat.h"
#include "clients/cairn/chat_input.h"
#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "clients/cpp/request_check.h"
#include "common/command/number_check.h"

namespace cairn::cli {
namespace {

// A conversation that cannot be gone on with is refused before anybody types anything; and the
// first turn follows what it holds now.
absl::Status CheckConversation(CairnClient& client, GenerateOptions& generate) {
  const std::int64_t id = generate.conversation_id;
  if (id == 0) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const ConversationInfo info, client.FindConversation(id));
  generate.conversation_token_count = info.token_count;
  if (info.usable) return absl::OkStatus();
  return FailedPrecondition("{}, or begin a conversation without --conversation",
                            info.unusable_reason);
}

absl::Status RunChat(ChatOptions options) {
  const std::int64_t id = options.generate.conversation_id;
  if (!options.system.empty() && id != 0) {
    throw CLI::ValidationError(fmt::format(
        "--system is for a new conversation: conversation {} has its beginning already", id));
  }
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--label", options.generate.label));
  CAIRN_RETURN_IF_ERROR(CheckUtf8("--policy", options.generate.policy));
  CAIRN_RETURN_IF_ERROR(CheckPrompt("--system", options.system));
  std::unique_ptr<CairnClient> client;
  ModelDescription model;
  {
    const InterruptCancels interrupt;
    ProgressLine progress(options.progress);
    CAIRN_ASSIGN_OR_RETURN(client, ConnectWhenReady(options.socket, progress, interrupt.token()));
    CAIRN_ASSIGN_OR_RETURN(model, client->GetModel());
  }
  CAIRN_RETURN_IF_ERROR(CheckConversation(*client, options.generate));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<ChatInput> input, ChatInput::Open());
  return Chat(*client, std::move(model), *input, std::move(options)).Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, CommandResult& result) {
  CLI::App& command = *app.add_subcommand("chat",
                                          "Talk with the model; /help in it shows what can be "
                                          "typed, Ctrl-D ends it. Without a terminal "
                                          "each line of standard input is a turn. The conversation "
                                          "stays on flash and can be continued, "
                                          "also after a restart of the daemons.");
  auto options = std::make_shared<ChatOptions>();
  auto progress = std::make_shared<bool>(false);
  GenerateOptions& generate = options->generate;
  generate.tokens_max = 1024;
  command.add_option("--conversation", generate.conversation_id, "Continue this conversation")
      ->check(ConversationNumber());
  command.add_option("--file", options->file, "A text to put in front of your first turn");
  command.add_option("--tokens", generate.tokens_max, "Tokens of an answer at most")
      ->check(WholeNumber(1, 1 << 24))
      ->capture_default_str();
  command.add_option(
      "--system", options->system,
      "What the model is told before your first turn; for models with a chat template");
  AddSamplingOptions(command, generate);
  AddRetrievalOptions(command, generate);
  command.add_option("--label", generate.label, "Shown by `cairn sessions list`");
  command.add_flag("--progress", *progress, "Show progress also without a terminal");
  AddSocketOption(command, options->socket);
  command.footer(
      "examples:\n"
      "  cairn chat\n"
      "  cairn chat --file book.txt --system \"Answer in one sentence.\"\n"
      "  cairn chat --conversation 3");
  SetAction(command, result, [options, progress] {
    if (*progress) options->progress = ProgressLine::Show::kAlways;
    return RunChat(*options);
  });
}

}  // namespace cairn::cli
