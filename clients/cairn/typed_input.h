// What somebody typed, pasted or piped into a chat.
#pragma once

#include <cstdint>
#include <string>

#include "clients/cpp/cairn_client.h"

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

}  // namespace cairn::cli
