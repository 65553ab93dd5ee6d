#include "common/daemon/signals.h"

#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(SignalsTest, FirstSignalIsReportedToTheOneWhoWaits) {
  StopSignals signals;
  EXPECT_FALSE(signals.requested());
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  EXPECT_EQ(signals.Wait(), SIGTERM);
  EXPECT_TRUE(signals.requested());
}

TEST(SignalsDeathTest, SecondSignalEndsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        ::kill(::getpid(), SIGINT);
        signals.Wait();
        ::kill(::getpid(), SIGINT);
        for (;;) ::pause();
      },
      testing::ExitedWithCode(kExitAborted), "");
}

}  // namespace
}  // namespace cairn
