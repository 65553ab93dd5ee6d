// LineEditor reads what a person types at a terminal: with editing, history, file names that Tab
// completes behind "/file ", and a pasted text of many lines as one input (Alt-Enter types a line
// break). Everything is UTF-8, of any length. Between two reads the terminal shows nothing of what
// is typed ahead and keeps it.
//
// Threading:  the main thread.
// Blocking:   Read waits for the person.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "clients/cairn/chat_input.h"
#include "common/base/status.h"

namespace cairn::cli {

class LineEditor {
 public:
  // Of the terminal that is standard input. `history`: older inputs, the oldest first. REQUIRES: a
  // locale whose characters are UTF-8.
  static absl::StatusOr<std::unique_ptr<LineEditor>> Open(const std::vector<std::string>& history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  TypedInput Read(const InterruptCancels& interrupt);
  // What the arrow keys find next.
  void Remember(const std::string& text);

  struct Impl;  // what the library's functions get

 private:
  explicit LineEditor(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::cli
