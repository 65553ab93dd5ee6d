// FileWatch tells whether a file that is mapped is still what it was: other programs may write to
// it or cut it short at any time, and then the mapping shows something else, or cannot be read. It
// holds the file open, so a file that takes its place by the same name changes nothing.
//
// Reading a mapped page that the file no longer has, or that its disk cannot read, would end the
// process (SIGBUS). Where a FileWatch is, zeros are read instead, and Check says so from then on.
//
// Whoever computes with what was mapped asks Check afterwards, and only then uses the result. A
// write shows in the file's time before it shows in its bytes.
//
// Threading:  safe from any thread.
// Blocking:   Check makes one system call, of less than a microsecond.
// Limits:     kFileWatchesMax at once in a process.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace cairn::compute {

inline constexpr int kFileWatchesMax = 4096;

class FileWatch {
 public:
  // Takes `fd`, whose file was as `opened` says before any of it was mapped. `mapped` begins on a
  // page and belongs to the caller, who unmaps it behind the watch's end. `name` is for messages.
  // RESOURCE_EXHAUSTED beyond kFileWatchesMax.
  static absl::StatusOr<std::unique_ptr<FileWatch>> Start(UniqueFd fd, const struct stat& opened,
                                                          std::span<const std::byte> mapped,
                                                          std::string name);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  const struct stat& opened() const { return opened_; }
  // FAILED_PRECONDITION once the file was written to, cut short, or could not be read.
  absl::Status Check() const;

 private:
  FileWatch(UniqueFd fd, const struct stat& opened, std::string name)
      : fd_(std::move(fd)), opened_(opened), name_(std::move(name)) {}

  const UniqueFd fd_;
  const struct stat opened_;
  const std::string name_;
  int slot_ = -1;  // of the table that the signal handler reads
};

}  // namespace cairn::compute
