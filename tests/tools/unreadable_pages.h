// Pages of a file that cannot be read: a program that links this has its own pread(), which fails
// with EIO for them and else does what libc's does.
//
// Threading:  one UnreadablePages at a time.
#pragma once

#include <cstdint>
#include <string>

namespace cairn::test {

class UnreadablePages {
 public:
  // Bytes [begin, end) of the file, which the kernel calls `path`; `times`: so many calls fail.
  UnreadablePages(std::string path, std::int64_t begin, std::int64_t end,
                  std::int64_t times = INT64_MAX);
  ~UnreadablePages();
  UnreadablePages(const UnreadablePages&) = delete;
  UnreadablePages& operator=(const UnreadablePages&) = delete;

  bool TakeFailure(int fd, std::int64_t offset, std::int64_t size);

 private:
  const std::string path_;
  const std::int64_t begin_;
  const std::int64_t end_;
  std::int64_t times_left_;
};

}  // namespace cairn::test
