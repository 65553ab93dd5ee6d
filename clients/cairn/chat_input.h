// Where a chat's turns come from: a terminal with editing and history, or a pipe, of which each
// line is one.
//
// Threading:  the main thread.
// Blocking:   Next waits for input, or for Ctrl-C.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "clients/cairn/interrupts.h"
#include "clients/cpp/cairn_client.h"
#include "common/base/status.h"

namespace cairn::cli {

// What is longer is no prompt.
inline constexpr std::int64_t kInputBytesMax = kPromptBytesMax;

struct TypedInput {
  enum class Kind : std::uint8_t {
    kText,
    kInterrupt,  // Ctrl-C; `text` is what had been typed
    kEnd,        // of the input; at a terminal Ctrl-D on an empty line
  };
  Kind kind = Kind::kEnd;
  std::string text;             // without the end of its last line; at most kInputBytesMax
  std::int64_t size_bytes = 0;  // of all
};

class ChatInput {
 public:
  // Of standard input.
  static absl::StatusOr<std::unique_ptr<ChatInput>> Open();
  virtual ~ChatInput() = default;

  virtual absl::StatusOr<TypedInput> Next(const InterruptCancels& interrupt) = 0;
  // Keeps what was typed for the arrow keys.
  virtual void Remember(const std::string& text) = 0;
  // Whether a person sees what is said about it.
  virtual bool is_terminal() const = 0;
};

}  // namespace cairn::cli
