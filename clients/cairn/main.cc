// cairn: the command line. `cairn --help` says what it can do.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "common/base/closest_name.h"
#include "common/base/status.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;  // as shells report a death by Ctrl-C
constexpr int kExitReaderGone = 141;   // and one by SIGPIPE

constexpr const char* kDescription =
    "Cairn runs language models on texts that are longer than memory: the model's memory of a\n"
    "conversation (its KV cache) lies on flash, and each step reads back only what it needs.";

int Fail(int exit_code, const std::string& message) {
  WriteProblem("cairn", message);
  return exit_code;
}

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "help") names.push_back(name);
    }
  }
  return names;
}

std::string CommandMeant(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const std::string meant = ClosestName(word, names);
  return meant.empty() ? "" : fmt::format(": did you mean {}?", meant);
}

// What the parser says about a wrong command line, with the command whose --help would explain it.
std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* chosen = &app;
  std::string command = "cairn";
  while (!chosen->get_subcommands().empty()) {
    chosen = chosen->get_subcommands().front();
    command += " " + chosen->get_name();
  }
  const std::vector<std::string> extra = chosen->remaining();
  const auto option = std::find_if(extra.begin(), extra.end(),
                                   [](const std::string& word) { return word.starts_with('-'); });
  if (option != extra.end()) {
    const std::string name = option->substr(0, option->find('='));
    const std::size_t start = std::min(name.find_first_not_of('-'), name.size());
    const std::string meant = ClosestName(std::string_view(name).substr(start), OptionsOf(*chosen));
    return fmt::format("there is no option {}{}; see {} --help", name,
                       meant.empty() ? "" : fmt::format(": did you mean --{}?", meant), command);
  }
  const bool wants_command = chosen->get_require_subcommand_min() > 0;
  const std::string problem = wants_command && !extra.empty()
                                  ? fmt::format("there is no command '{} {}'{}", command, extra[0],
                                                CommandMeant(*chosen, extra[0]))
                                  : error.what();
  return fmt::format("{}; see {} --help", problem, command);
}

int ExitCode(const absl::Status& status) {
  if (OutputReaderIsGone()) return kExitReaderGone;
  if (status.ok()) return 0;
  return Fail(absl::IsCancelled(status) ? kExitInterrupted : kExitError, Message(status));
}

// A standard stream that is closed would otherwise be the next file or socket that is opened.
void OccupyStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Opened the wrong way round: using it stays an error.
    const int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", flags);
  }
}

int Run(int argc, char** argv) {
  CLI::App app{kDescription, "cairn"};
  app.set_version_flag("--version", "cairn " CAIRN_VERSION);
  app.require_subcommand(1);
  CommandResult result;
#ifdef CAIRN_WITH_DAEMONS
  AddGenerateCommand(app, result);
  AddChatCommand(app, result);
  AddSessionsCommands(app, result);
  AddStatusCommand(app, result);
#endif
  AddModelCommands(app, result);
  // Behind the commands, which would have it too.
#ifdef CAIRN_WITH_DAEMONS
  app.footer(
      "generate, chat, sessions and status talk to the daemons, which must run:\n"
      "  cairn-kv-node &\n"
      "  cairn-compute-node --model MODEL.gguf &\n\n"
      "example: cairn generate \"The capital of France is\"\n"
      "Each command explains itself: cairn COMMAND --help");
#else
  app.footer(
      "example: cairn model inspect model.gguf\n"
      "Each command explains itself: cairn COMMAND --help");
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    std::ostringstream text;  // of --help and --version
    app.exit(success, text);
    return ExitCode(WriteOutput(text.str()));
  } catch (const CLI::ParseError& error) {
    return Fail(kExitUsage, UsageMessage(app, error));
  }
  return ExitCode(result.status);
}

}  // namespace
}  // namespace cairn::cli

int main(int argc, char** argv) {
  // A reader that went away (cairn ... | head) is a write error: the generation is cancelled first.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // likewise: a file that becomes longer than `ulimit -f` allows
  cairn::cli::OccupyStandardStreams();
  // All text is UTF-8, whatever the environment says; a line editor asks the locale.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) {  // NOLINT(concurrency-mt-unsafe): alone
    std::setlocale(LC_CTYPE, "");                        // NOLINT(concurrency-mt-unsafe)
  }
  try {
    return cairn::cli::Run(argc, argv);
  } catch (const std::exception& error) {
    cairn::cli::WriteProblem("cairn", error.what());
    return 1;
  }
}
