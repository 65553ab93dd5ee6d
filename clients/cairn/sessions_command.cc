// cairn sessions list | show | fork | delete
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "clients/cairn/daemon_options.h"
#include "common/base/json_string.h"
#include "common/base/printable.h"
#include "common/command/number_check.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

struct SessionsArguments {
  std::string socket;
  std::int64_t id = 0;
  std::int64_t token_count = 0;
  std::string label;
  bool json = false;
};

absl::StatusOr<std::unique_ptr<CairnClient>> Connect(const SessionsArguments& options) {
  const InterruptCancels interrupt;
  ProgressLine progress(ProgressLine::Show::kIfTerminal);
  return ConnectWhenReady(options.socket, progress, interrupt.token());
}

// "2026-01-31 17:05:12".
std::string LocalTime(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", parts);
}

// Fields of an object.
std::string JsonFields(const ConversationInfo& info) {
  const auto seconds = [](std::chrono::system_clock::time_point time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  };
  return fmt::format(
      "\"conversation_id\": {}, \"label\": {}, \"token_count\": {}, \"flash_bytes\": {}, "
      "\"shared_flash_bytes\": {}, \"create_time\": {:.6f}, \"update_time\": {}, \"usable\": {}, "
      "\"unusable_reason\": {}",
      info.conversation_id, JsonString(info.label), info.token_count, info.flash_bytes,
      info.shared_flash_bytes, seconds(info.create_time),
      info.update_time ? fmt::format("{:.6f}", seconds(*info.update_time)) : "null", info.usable,
      info.usable ? "null" : JsonString(info.unusable_reason));
}

std::string Json(const std::vector<ConversationInfo>& conversations) {
  std::string out = "[";
  const char* separator = "\n";
  for (const ConversationInfo& info : conversations) {
    out += fmt::format("{}  {{{}}}", separator, JsonFields(info));
    separator = ",\n";
  }
  return out + "\n]\n";
}

std::string Table(const std::vector<ConversationInfo>& conversations) {
  // What deleting it gives back, and what it shares with forks.
  std::string out = fmt::format("{:>8}  {:>9}  {:>10}  {:>10}  {:<19}  {}\n", "ID", "TOKENS",
                                "FLASH", "SHARED", "LAST STORED", "LABEL");
  for (const ConversationInfo& info : conversations) {
    out += fmt::format("{:>8}  {:>9}  {:>10}  {:>10}  {:<19}  {}{}\n", info.conversation_id,
                       info.token_count, HumanBytes(info.flash_bytes),
                       HumanBytes(info.shared_flash_bytes),
                       info.update_time ? LocalTime(*info.update_time) : "never",
                       EscapeControls(info.label), info.usable ? "" : " (of another model)");
  }
  return out;
}

absl::Status List(const SessionsArguments& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client, Connect(options));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ConversationInfo> conversations,
                         client->ListConversations());
  return WriteOutput(options.json ? Json(conversations) : Table(conversations));
}

absl::Status Show(const SessionsArguments& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client, Connect(options));
  ConversationInfo info;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, client->ReadConversation(options.id, &info));
  if (options.json) {
    return WriteOutput(fmt::format("{{{}, \"text\": {}}}\n", JsonFields(info), JsonString(text)));
  }
  return WriteOutput(ForTheReader(text) + "\n");
}

absl::Status Delete(const SessionsArguments& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client, Connect(options));
  return client->DeleteConversation(options.id);
}

absl::Status Fork(const SessionsArguments& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CairnClient> client, Connect(options));
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t fork,
                         client->ForkConversation(options.id, options.token_count, options.label));
  return WriteOutput(options.json ? fmt::format("{{\"conversation_id\": {}}}\n", fork)
                                  : fmt::format("{}\n", fork));
}

void AddList(CLI::App& group, CommandResult& result) {
  CLI::App& command = *group.add_subcommand(
      "list",
      "All conversations, newest first. FLASH is what each takes alone: what forks share, or have "
      "shared, goes with the last of them");
  auto options = std::make_shared<SessionsArguments>();
  command.add_flag("--json", options->json, "As JSON");
  AddSocketOption(command, options->socket);
  command.footer("example: cairn sessions list");
  SetAction(command, result, [options] { return List(*options); });
}

void AddShow(CLI::App& group, CommandResult& result) {
  CLI::App& command = *group.add_subcommand("show", "The text of a conversation");
  auto options = std::make_shared<SessionsArguments>();
  command.add_option("id", options->id, "Its id")->required()->check(ConversationNumber());
  command.add_flag("--json", options->json, "As a JSON object, with what `list` says of it");
  AddSocketOption(command, options->socket);
  command.footer("example: cairn sessions show 3 --json");
  SetAction(command, result, [options] { return Show(*options); });
}

void AddFork(CLI::App& group, CommandResult& result) {
  CLI::App& command = *group.add_subcommand(
      "fork", "A new conversation that begins with the first tokens of another; prints its id");
  auto options = std::make_shared<SessionsArguments>();
  command.add_option("id", options->id, "The other's id")->required()->check(ConversationNumber());
  command.add_option("--tokens", options->token_count, "How many tokens; default: all")
      ->check(WholeNumber(1, std::int64_t{1} << 31));
  command.add_option("--label", options->label, "Shown by `cairn sessions list`");
  command.add_flag("--json", options->json, "As a JSON object");
  AddSocketOption(command, options->socket);
  command.footer("example: cairn sessions fork 3 --tokens 900");
  SetAction(command, result, [options] { return Fork(*options); });
}

void AddDelete(CLI::App& group, CommandResult& result) {
  CLI::App& command = *group.add_subcommand("delete", "Delete a conversation and free its flash");
  auto options = std::make_shared<SessionsArguments>();
  command.add_option("id", options->id, "Its id")->required()->check(ConversationNumber());
  AddSocketOption(command, options->socket);
  command.footer("example: cairn sessions delete 3");
  SetAction(command, result, [options] { return Delete(*options); });
}

}  // namespace

void AddSessionsCommands(CLI::App& app, CommandResult& result) {
  CLI::App& sessions = *app.add_subcommand("sessions", "Conversations that are on flash");
  sessions.require_subcommand(1);
  sessions.footer("example: cairn sessions list");
  AddList(sessions, result);
  AddShow(sessions, result);
  AddFork(sessions, result);
  AddDelete(sessions, result);
}

}  // namespace cairn::cli
