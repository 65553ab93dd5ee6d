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

TEST(InterruptsDeathTest, SecondSaysTheNewestOfItsLastWords) {
  EXPECT_EXIT(
      {
        InterruptCancels interrupt;
        interrupt.SetLastWords("first\n");
        interrupt.SetLastWords("go on so\n");
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "^go on so\n$");
  EXPECT_EXIT(
      {
        InterruptCancels interrupt;
        interrupt.SetLastWords("first\n");
        interrupt.SetLastWords("");
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "^$");
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
