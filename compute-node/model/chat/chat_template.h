// ChatTemplate writes messages as a model was trained to read them. Files bring their template as a
// Jinja program; Cairn does not run it but recognises which family it belongs to, and writes that
// family's form itself. So a file cannot make the daemon compute for ever, and the words of users
// stay apart from the template's own.
//
// Where the family is not all, the template's text decides: the system message that ChatML
// templates (Qwen) put in where there is none; the date lines of Llama 3.1 and later, always with
// the fixed date that those templates fall back to, so that a prompt does not depend on the day;
// the <think> with which newer DeepSeek distills make an answer begin.
//
// A conversation is stored and grows: Render writes a turn behind what is there. A stored
// conversation ends with the end-of-turn token, or without it, when a limit or a stop text ended
// the answer; then the turn is closed first. What separates two turns is written in front of the
// second. So turns appended one by one are the same tokens as all rendered at once, except: where
// Mistral's templates move the system message to the last user's turn, it stays in the first; what
// a model generated is not trimmed, and the reasoning of DeepSeek's models stays in.
//
// Threading:  immutable; safe from any thread.
// Errors:     Recognise: NOT_FOUND no template, UNIMPLEMENTED an unknown family. ByName:
//             INVALID_ARGUMENT. Render: INVALID_ARGUMENT for roles or an order of them that the
//             family cannot write, naming the message.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::compute {

inline constexpr std::int64_t kChatMessagesMax = 4096;
// Where a GGUF file has the text that Recognise takes.
inline constexpr std::string_view kChatTemplateKey = "tokenizer.chat_template";

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// What a rendered turn follows.
enum class ChatPosition {
  kFirst,     // nothing
  kAfterEnd,  // an end-of-turn token
  kOpen,      // an answer without its end, or a user's turn that has none
};

struct ChatForm;

class ChatTemplate {
 public:
  // From the text under tokenizer.chat_template.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view template_text);
  // The family's plain form: no system message but the caller's, no date lines.
  static absl::StatusOr<ChatTemplate> ByName(std::string_view name);
  // All names, with commas.
  static std::string Names();

  // "chatml", "llama3", ...: the names that other engines use.
  std::string_view name() const;
  // What ends an answer; empty: the vocabulary's end-of-text token.
  std::string_view end_of_turn() const;

  // `ask`: an answer is to be generated behind it. Not behind an assistant's message.
  absl::StatusOr<std::vector<PromptPiece>> Render(std::span<const ChatMessage> messages,
                                                  ChatPosition position, bool ask) const;

 private:
  explicit ChatTemplate(const ChatForm& form);
  absl::Status Check(std::span<const ChatMessage> messages, ChatPosition position, bool ask) const;

  const ChatForm* form_;         // static
  std::string default_system_;   // where a conversation begins without one; empty: none
  std::string system_preamble_;  // in front of the first system message, which is always there
  std::string ask_;
};

}  // namespace cairn::compute
