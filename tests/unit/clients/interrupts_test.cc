// Ctrl-C, pressed more than once.
#include "clients/cairn/interrupts.h"

#include <poll.h>
#include <signal.h>

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

using Second = InterruptCancels::Second;

bool Wakes() {
  pollfd waiting{WakeFd(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

TEST(InterruptsTest, EachWaitsUntilItIsTaken) {
  InterruptCancels interrupt(Second::kWaits);
  EXPECT_FALSE(interrupt.interrupted());
  ::raise(SIGINT);
  ::raise(SIGINT);
  EXPECT_TRUE(interrupt.interrupted());
  interrupt.TakeOne();
  EXPECT_TRUE(interrupt.interrupted());
  EXPECT_TRUE(Wakes());
  interrupt.TakeOne();
  EXPECT_FALSE(interrupt.interrupted());
  EXPECT_FALSE(Wakes());
  interrupt.TakeOne();  // of none
  ::raise(SIGINT);
  EXPECT_TRUE(interrupt.interrupted());
}

TEST(InterruptsTest, ResetAnswersAll) {
  InterruptCancels interrupt(Second::kWaits);
  ::raise(SIGINT);
  ::raise(SIGINT);
  interrupt.Reset();
  EXPECT_FALSE(interrupt.interrupted());
  EXPECT_FALSE(Wakes());
  ::raise(SIGINT);
  interrupt.TakeOne();
  EXPECT_FALSE(interrupt.interrupted());
}

TEST(InterruptsDeathTest, SecondEndsTheProcessWhereNobodyTakesThem) {
  EXPECT_EXIT(
      {
        InterruptCancels interrupt;
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptsDeathTest, SecondEndsTheProcessAlsoWhenThatIsSaidLater) {
  EXPECT_EXIT(
      {
        InterruptCancels interrupt(Second::kWaits);
        ::raise(SIGINT);
        interrupt.TakeOne();
        interrupt.SetSecond(Second::kEndsTheProcess);
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace cairn::cli
