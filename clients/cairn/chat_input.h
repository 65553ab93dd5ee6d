// Where a chat's turns come from: a terminal with editing and history, or a pipe, of which each
// line is one.
//
// Threading:  the main thread.
// Blocking:   Next waits for input, or for Ctrl-C.
#pragma once

#include <memory>
#include <string>

#include "clients/cairn/interrupts.h"
#include "clients/cairn/typed_input.h"
#include "common/base/status.h"

namespace cairn::cli {

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
