#include "common/io/open_files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include <gtest/gtest.h>

#include "tests/tools/descriptors_left.h"

namespace cairn {
namespace {

TEST(OpenFilesTest, TheSoftLimitIsRaisedAndNeverLowered) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto limit_from = [&](rlim_t soft) {
    rlimit limit = before;
    limit.rlim_cur = soft;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_TRUE(RaiseOpenFilesLimit().ok());
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

// The hard limit, which cannot be raised again: in a process of its own.
void ExitWithTooFew() {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = kOpenFilesMin - 1;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  const absl::Status status = RaiseOpenFilesLimit();
  std::cerr << Message(status);
  ::_exit(static_cast<int>(status.code()));
}

TEST(OpenFilesTest, TooFewAreRefusedWithBothNumbers) {
  EXPECT_EXIT(ExitWithTooFew(),
              testing::ExitedWithCode(static_cast<int>(absl::StatusCode::kResourceExhausted)),
              "may have 511 files open and needs 512");
}

TEST(OpenFilesTest, ClientsGetNoneOfThoseThatAreReserved) {
  {
    const test::DescriptorsLeft left(kOpenFilesReserved + 1);
    EXPECT_TRUE(IsDescriptorLeftForClient());
  }
  for (const long count : {kOpenFilesReserved, 0L}) {
    const test::DescriptorsLeft left(count);
    EXPECT_FALSE(IsDescriptorLeftForClient()) << count;
  }
}

}  // namespace
}  // namespace cairn
