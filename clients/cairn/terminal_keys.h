// TerminalKeys are the characters that a terminal sends, one by one as an editor takes them, or all
// that is pasted at once.
//
// Threading:  the main thread.
// Blocking:   waits for keys.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "clients/cairn/input_bytes.h"

namespace cairn::cli {

class TerminalKeys {
 public:
  // As InputBytes.
  TerminalKeys(int fd, std::function<bool()> on_wake);

  // The next character's code point; U+FFFD for a byte that is no UTF-8. nullopt: the terminal is
  // gone, or waiting ended.
  std::optional<char32_t> Next();
  // What comes up to the mark of a paste's end, with line ends as "\n"; what has more than
  // `bytes_max` is cut behind that. nullopt as above.
  std::optional<std::string> RestOfPaste(std::size_t bytes_max);

 private:
  // Reads more bytes.
  bool Fill();

  InputBytes input_;
  std::string bytes_;  // read, and not taken yet, from `start_` on
  std::size_t start_ = 0;
};

}  // namespace cairn::cli
