// What a turn that Ctrl-C ended has left on flash, in words, with the command that goes on there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "clients/cairn/progress_line.h"
#include "clients/cpp/cairn_client.h"

namespace cairn::cli {

// How far a turn has come, in tokens.
struct TurnProgress {
  std::int64_t conversation_id = 0;  // 0: it has not begun
  std::int64_t reused_count = 0;     // that the conversation held before
  std::int64_t prompt_count = 0;
  std::int64_t done_count = 0;  // of the prompt
  bool has_text = false;        // of the answer
  bool recomputes = false;      // right now: the conversation is damaged, and computed again
};

// Of a turn that ended while its conversation was computed again.
inline constexpr std::string_view kKeptOfRecomputing =
    "while the conversation was computed again: it is as it was, and its next turn begins that "
    "again";

struct KeptTurn {
  bool conversation_is_gone = false;
  std::string text;
  bool lacks_rest = false;  // of the prompt, which only the user has
  bool has_prompt = false;  // all of it
  // What the conversation holds; nullopt: nobody knows.
  std::optional<std::int64_t> token_count{};
};

// "cairn COMMAND --conversation ID", with the socket if that is not the default.
std::string GoOnCommand(std::string_view command, std::int64_t conversation_id,
                        const std::string& socket);

// What a second Ctrl-C says, which does not wait for what is kept.
std::string WordsOfUnknownEnd(std::string_view command, std::int64_t conversation_id,
                              const std::string& socket);

// Behind the text of one that is not gone: how to go on with cairn generate.
std::string HowToGoOn(const KeptTurn& kept, std::int64_t conversation_id,
                      const std::string& socket);

// What is kept of the turn, as far as `kept_count`, the conversation's tokens, tells.
KeptTurn DescribeKept(const TurnProgress& turn, std::int64_t kept_count);

// Asks the daemon, which may take a moment and is told by `progress`, and describes that. REQUIRES:
// the turn has begun.
KeptTurn AskWhatIsKept(CairnClient& client, const TurnProgress& turn, ProgressLine& progress);

}  // namespace cairn::cli
