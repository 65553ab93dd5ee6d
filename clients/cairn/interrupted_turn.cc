#include "clients/cairn/interrupted_turn.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "common/base/status.h"

namespace cairn::cli {
namespace {

// A large model computes for some seconds before it looks whether it shall stop.
constexpr std::chrono::seconds kEndTimeMax{30};

// In single quotes where a shell would not take it as it is.
std::string ShellWord(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=:@%,").find(c) != std::string_view::npos;
  });
  if (plain && !text.empty()) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string SocketFlag(const std::string& socket) {
  return socket == DefaultComputeSocket() ? "" : " --socket " + ShellWord(socket);
}

}  // namespace

std::string GoOnCommand(std::string_view command, std::int64_t conversation_id,
                        const std::string& socket) {
  return fmt::format("cairn {} --conversation {}{}", command, conversation_id, SocketFlag(socket));
}

std::string WordsOfUnknownEnd(std::string_view command, std::int64_t conversation_id,
                              const std::string& socket) {
  return fmt::format("\nconversation={}: what was stored of it is kept; go on with {}\n",
                     conversation_id, GoOnCommand(command, conversation_id, socket));
}

std::string HowToGoOn(const KeptTurn& kept, std::int64_t conversation_id,
                      const std::string& socket) {
  const std::string command = GoOnCommand("generate", conversation_id, socket);
  if (!kept.lacks_rest) return fmt::format("; go on with {}", command);
  // The whole prompt again would be behind its own beginning.
  return fmt::format("; go on with the rest of the prompt, without them, by {}; {} shows them",
                     command,
                     fmt::format("cairn sessions show {}{}", conversation_id, SocketFlag(socket)));
}

KeptTurn DescribeKept(const TurnProgress& turn, std::int64_t kept_count) {
  if (turn.has_text) {
    return {.text = fmt::format("what was generated is in conversation {}", turn.conversation_id)};
  }
  const std::string when =
      fmt::format("after {} of {} prompt tokens", turn.done_count, turn.prompt_count);
  const std::int64_t kept_of_prompt = std::min(kept_count - turn.reused_count, turn.prompt_count);
  if (kept_of_prompt > 0) {
    return {.text = fmt::format("{}; conversation {} keeps the first {} of them", when,
                                turn.conversation_id, kept_of_prompt),
            .lacks_rest = kept_of_prompt < turn.prompt_count,
            .has_prompt = kept_of_prompt == turn.prompt_count};
  }
  constexpr std::string_view kWhy =
      "a prompt is stored in pieces (prefill_chunk_tokens of cairn-compute-node), and none was "
      "complete";
  if (kept_count > 0) {
    return {.text = fmt::format("{}; conversation {} is as it was: {}", when, turn.conversation_id,
                                kWhy)};
  }
  return {.conversation_is_gone = true, .text = fmt::format("{}; nothing is kept: {}", when, kWhy)};
}

KeptTurn AskWhatIsKept(CairnClient& client, const TurnProgress& turn, ProgressLine& progress) {
  progress.Say("stopping ... (Ctrl-C once more does not wait for it)");
  const absl::StatusOr<std::int64_t> count =
      client.WaitForKeptTokens(turn.conversation_id, kEndTimeMax);
  progress.Clear();
  if (count.ok() || turn.has_text) {
    KeptTurn kept = DescribeKept(turn, count.value_or(0));
    if (count.ok()) kept.token_count = *count;
    return kept;
  }
  return {.text = fmt::format("conversation {} keeps what was done, if anything ({}); see cairn "
                              "sessions list",
                              turn.conversation_id, Message(count.status()))};
}

}  // namespace cairn::cli
