#include "common/daemon/open_files.h"

#include <sys/resource.h>

#include <algorithm>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(OpenFilesTest, TheSoftLimitIsRaisedAndNeverLowered) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto limit_from = [&](rlim_t soft) {
    rlimit limit = before;
    limit.rlim_cur = soft;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    RaiseOpenFilesLimit();
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(limit.rlim_max, before.rlim_max);
    return limit.rlim_cur;
  };
  const rlim_t most = std::min<rlim_t>(before.rlim_max, kOpenFilesMax);
  EXPECT_EQ(limit_from(64), most);
  EXPECT_EQ(limit_from(most), most);
  if (before.rlim_max > most) {
    EXPECT_EQ(limit_from(most + 1), most + 1);
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace cairn
