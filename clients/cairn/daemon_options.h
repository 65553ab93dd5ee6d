// What the commands that talk to cairn-compute-node share: flags, connecting.
//
// Threading:  one thread.
#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "clients/cairn/interrupts.h"
#include "clients/cairn/progress_line.h"
#include "clients/cpp/cairn_client.h"
#include "common/base/status.h"

namespace cairn::cli {

// Checks the number of a conversation: decimal digits.
CLI::Validator ConversationNumber();

// Adds --socket, whose default is the daemon's.
void AddSocketOption(CLI::App& command, std::string& socket);

// Adds how a token is chosen: --temperature, --top-k, --seed, the penalties and so on.
void AddSamplingOptions(CLI::App& command, GenerateOptions& generate);

// Adds what of a long conversation each token attends: --policy, --select, --prefill.
void AddRetrievalOptions(CLI::App& command, GenerateOptions& generate);

// Connects and waits until the model is loaded, showing how far it is. At a terminal a daemon that
// nobody has started may still appear within some seconds. CANCELLED on Ctrl-C.
absl::StatusOr<std::unique_ptr<CairnClient>> ConnectWhenReady(const std::string& socket,
                                                              ProgressLine& progress,
                                                              const CancelToken* cancel);

}  // namespace cairn::cli
