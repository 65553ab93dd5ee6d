// What the commands that talk to cairn-compute-node share: flags, Ctrl-C, progress lines.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

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

// Turns Ctrl-C into a cancellation for as long as it lives; a second Ctrl-C ends the process as
// usual. One at a time.
class InterruptCancels {
 public:
  InterruptCancels();
  ~InterruptCancels();
  InterruptCancels(const InterruptCancels&) = delete;
  InterruptCancels& operator=(const InterruptCancels&) = delete;

  // As if Ctrl-C had been pressed.
  void Cancel();
  const CancelToken* token() const;
  bool interrupted() const { return token()->cancelled(); }
};

// How far something is, on standard error: one line that is written over on a terminal, a line for
// each tenth otherwise.
class ProgressLine {
 public:
  enum class Show { kIfTerminal, kAlways };
  explicit ProgressLine(Show show);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Update(std::string_view what, std::int64_t done, std::int64_t total, std::string_view unit);
  // Removes the line from a terminal.
  void Clear();

 private:
  const bool terminal_;
  const bool shown_;
  bool dirty_ = false;
  std::string what_;
  std::int64_t told_tenths_ = -1;
};

// Connects and waits until the model is loaded, showing how far it is. CANCELLED on Ctrl-C.
absl::StatusOr<std::unique_ptr<CairnClient>> ConnectWhenReady(const std::string& socket,
                                                              ProgressLine& progress,
                                                              const CancelToken* cancel);

// "summary: tokens_per_s=... ttft_ms=... kv_flash_bytes=... kv_dram_bytes=... io_engine=...
// policy=..."
std::string SummaryLine(const GenerateResult& result);

}  // namespace cairn::cli
