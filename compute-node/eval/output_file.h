// OutputFile replaces a file as a whole: what is written lies beside it, with ".part" behind the
// name, until Commit puts it in its place. Without Commit the file stays what it was.
//
// Threading:  one thread at a time.
// Errors:     those of ErrnoStatus, naming the file.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/command/input.h"

namespace cairn::eval {

class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : path_(path), part_(path + ".part") {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  absl::Status Open();
  // Behind a failure nothing more is written, and Commit answers that failure. REQUIRES: opened.
  void Write(std::string_view text);
  absl::Status Commit();

 private:
  const std::string path_;
  const std::string part_;
  cli::FileHandle file_;
  absl::Status status_;
};

// All in one.
absl::Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace cairn::eval
