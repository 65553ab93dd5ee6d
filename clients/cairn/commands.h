// The subcommands of `cairn`. Each file *_commands.cc adds one family of them to the parser; when
// the user chose one of its commands, parsing runs it and leaves its status in the CommandResult.
//   void AddXCommands(CLI::App& app, CommandResult& result);
// Rules: a command prints its answer on standard output and nothing else there; progress and errors
// go to standard error; both through output.h.
//        What the parser can tell (unknown options, values that are not allowed) ends with status
//        2, what running tells with status 1 and one line "cairn: ...". A command that Ctrl-C ended
//        leaves CANCELLED, which becomes status 130. When nobody reads the answer any more
//        (cairn ... | head), it stops with status 141, as if SIGPIPE had ended it.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>
#include <absl/status/status.h>

namespace cairn::cli {

// What the chosen command ended with.
struct CommandResult {
  absl::Status status;
};

// Makes `command` run `run` when it is the one that the user chose.
inline void SetAction(CLI::App& command, CommandResult& result, std::function<absl::Status()> run) {
  command.callback([&result, run = std::move(run)] { result.status = run(); });
}

// cairn model inspect | tokenize | logits | trace
void AddModelCommands(CLI::App& app, CommandResult& result);
// Adds `trace` to `cairn model`.
void AddModelTraceCommand(CLI::App& group, CommandResult& result);

// Commands that talk to cairn-compute-node; built where gRPC is.
// cairn generate
void AddGenerateCommand(CLI::App& app, CommandResult& result);
// cairn chat
void AddChatCommand(CLI::App& app, CommandResult& result);
// cairn status
void AddStatusCommand(CLI::App& app, CommandResult& result);
// cairn sessions list | show | fork | delete
void AddSessionsCommands(CLI::App& app, CommandResult& result);

}  // namespace cairn::cli
