#include "tests/tools/unreadable_pages.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace cairn::test {
namespace {

UnreadablePages* the_pages = nullptr;

}  // namespace

UnreadablePages::UnreadablePages(std::string path, std::int64_t begin, std::int64_t end,
                                 std::int64_t times)
    : path_(std::move(path)), begin_(begin), end_(end), times_left_(times) {
  CAIRN_CHECK(the_pages == nullptr);
  the_pages = this;
}

UnreadablePages::~UnreadablePages() { the_pages = nullptr; }

bool UnreadablePages::TakeFailure(int fd, std::int64_t offset, std::int64_t size) {
  if (times_left_ == 0 || offset >= end_ || offset + size <= begin_) return false;
  std::error_code error;
  if (std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error) != path_) {
    return false;
  }
  --times_left_;
  return true;
}

}  // namespace cairn::test

extern "C" ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  cairn::test::UnreadablePages* const pages = cairn::test::the_pages;
  if (pages != nullptr && pages->TakeFailure(fd, offset, static_cast<std::int64_t>(size))) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, fd, bytes, size, offset);
}
