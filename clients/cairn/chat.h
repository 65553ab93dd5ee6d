// Chat talks with one conversation, turn by turn, as a person or a pipe says.
//
// Threading:  the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/cairn/chat_input.h"
#include "clients/cairn/interrupted_turn.h"
#include "clients/cairn/interrupts.h"
#include "clients/cairn/progress_line.h"
#include "clients/cpp/cairn_client.h"
#include "common/base/status.h"

namespace cairn::cli {

struct ChatOptions {
  std::string socket;
  GenerateOptions generate;
  std::string system;
  std::string file;  // empty: none
  ProgressLine::Show progress = ProgressLine::Show::kIfTerminal;
};

class Chat {
 public:
  Chat(CairnClient& client, ModelDescription model, ChatInput& input, ChatOptions options);

  // To the end of the input. What is refused does not end it; a pipe's end is an error then.
  absl::Status Run();

 private:
  enum class Next : std::uint8_t { kGoOn, kEnd };

  absl::Status Talk();
  // Ctrl-C while nothing was generated.
  absl::StatusOr<Next> Interrupted(const std::string& typed);
  // Whether a turn that ended so is no reason to end the chat.
  bool CanGoOn(const absl::Status& status);
  // What the next turn does behind one that ended so, where that is not what it would have done.
  void TellWhatFollows(const absl::Status& status);
  // The next turn begins a new conversation.
  void BeginAnew();
  // What was typed: a command or a turn.
  absl::StatusOr<Next> Take(const TypedInput& input, InterruptCancels& interrupt);
  // False: `text` is no command.
  absl::StatusOr<bool> TakeCommand(const std::string& text, Next& next);
  absl::Status AddFile(const std::string& path);

  // How a turn becomes a prompt: a message if the model has a chat template.
  absl::Status SetUpTemplate();
  void SetPrompt(const std::string& text);
  // INVALID_ARGUMENT if it cannot be sent; the chat can go on without it.
  absl::Status CheckTurn(const std::string& what, const std::string& text, std::int64_t size_bytes);
  absl::StatusOr<bool> HasSpecial(const std::string& text);
  absl::Status Turn(const std::string& text, InterruptCancels& interrupt);
  // One answer, printed as it comes.
  absl::Status Generate(InterruptCancels& interrupt, TurnProgress& turn);
  // Says what Ctrl-C has left.
  void TellInterrupted(const TurnProgress& turn);
  // The same of a turn that failed before its answer began; what its daemon does not say now is
  // asked before the next turn.
  void TellFailed(const TurnProgress& turn);
  // Whether the next turn may be sent: not if it would go on, unknown to who typed it, behind a
  // part of one that failed.
  absl::Status ResolveDoubt();
  void NoteKept(const KeptTurn& kept);
  // Says which files were in front of a turn that got no answer, for they have to be put there
  // again.
  void TellFilesAreGone(bool part_is_kept = false);
  // Empty without a conversation.
  std::string WordsOfTheSecondInterrupt() const;
  void TellTheEnd(const absl::Status& status);

  CairnClient& client_;
  const ModelDescription model_;
  ChatInput& input_;
  ChatOptions options_;
  GenerateOptions& generate_;  // of them
  std::string before_;         // and behind a turn, where there is no chat template
  std::string after_;
  std::string pending_;  // of files: goes in front of the next turn
  std::vector<std::string> pending_files_;
  std::vector<std::string> unanswered_files_;  // that were in front of the last turn
  bool may_be_gone_ = false;                   // its first turn has not ended well
  std::optional<TurnProgress> in_doubt_;       // a turn of which nobody knows what is kept
  std::optional<TurnProgress> failed_;         // the turn that was just typed
  bool ends_within_a_line_ = false;            // the last answer, which was cut off
  std::int64_t refused_count_ = 0;
  bool told_how_to_leave_ = false;
};

}  // namespace cairn::cli
