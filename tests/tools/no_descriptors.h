// While it lives, this process can open no file.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include "common/base/check.h"

namespace cairn::test {

class NoDescriptors {
 public:
  NoDescriptors() {
    CAIRN_CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = ::dup(0);
    CAIRN_CHECK_GE(lowest_free, 0);
    ::close(lowest_free);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest_free);
    CAIRN_CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cairn::test
