// ChatHistory keeps what a person typed in chats in a file that only its owner may read, so that
// the arrow keys find it in later chats too. An input is a line of the file; its line breaks and
// backslashes are written \n and \\.
//
// Threading:  one thread; several processes may add to one file.
// Errors:     those of the file system, with its path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace cairn::cli {

// The file keeps the newest inputs that fit into both. When it is larger than the second it is
// written anew.
inline constexpr std::int64_t kHistoryInputsMax = 1000;
inline constexpr std::int64_t kHistoryFileBytesMax = std::int64_t{1} << 20;
// Inputs that are larger, such as pasted texts, are not kept.
inline constexpr std::int64_t kHistoryInputBytesMax = std::int64_t{16} << 10;

// chat_history in $XDG_STATE_HOME/cairn, without that variable in ~/.local/state/cairn; empty where
// there is no home.
std::string DefaultHistoryPath();

class ChatHistory {
 public:
  // An empty path: nothing is kept.
  explicit ChatHistory(std::string path) : path_(std::move(path)) {}

  // The inputs that the file holds, the oldest first; none if there is no file.
  absl::StatusOr<std::vector<std::string>> Load();
  // Behind them. An input like the newest one is not added again.
  absl::Status Add(const std::string& input);

 private:
  absl::Status Replace(const std::vector<std::string>& inputs) const;

  const std::string path_;
  std::string newest_;
};

}  // namespace cairn::cli
