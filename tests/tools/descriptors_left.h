// DescriptorsLeft: as long as it lives, this process may have so many files more open than it has
// open already.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cairn::test {

class DescriptorsLeft {
 public:
  explicit DescriptorsLeft(long count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // the lowest that is free
    EXPECT_GE(next, 0);
    ::close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next + count);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorsLeft(const DescriptorsLeft&) = delete;
  DescriptorsLeft& operator=(const DescriptorsLeft&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cairn::test
