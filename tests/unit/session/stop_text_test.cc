#include "compute-node/session/stop_text.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

std::string Feed(StopText& stop, std::string_view text, std::size_t piece) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); i += piece) shown += stop.Append(text.substr(i, piece));
  return shown + stop.Finish();
}

TEST(StopTextTest, CutsBeforeTheFirstMatchHoweverTextComes) {
  for (const std::size_t piece : {1U, 2U, 3U, 5U, 100U}) {
    StopText stop({"\nQ:", "END"});
    EXPECT_EQ(Feed(stop, "one\ntwo\nQ: three END", piece), "one\ntwo") << piece;
    EXPECT_TRUE(stop.matched());
  }
}

TEST(StopTextTest, LetsTextWithoutAMatchThroughWhole) {
  for (const std::size_t piece : {1U, 2U, 7U}) {
    StopText stop({"aab", "zz"});
    EXPECT_EQ(Feed(stop, "aaaa z aac aa", piece), "aaaa z aac aa");
    EXPECT_FALSE(stop.matched());
  }
}

TEST(StopTextTest, HoldsBackOnlyWhatMayBecomeAMatch) {
  StopText stop({"aab"});
  EXPECT_EQ(stop.Append("xaa"), "x");
  EXPECT_EQ(stop.Append("a"), "a");
  EXPECT_EQ(stop.Append("b"), "");
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.Append("more"), "");
}

TEST(StopTextTest, WithoutStopsEverythingPasses) {
  StopText stop({""});
  EXPECT_EQ(stop.Append("text"), "text");
}

}  // namespace
}  // namespace cairn::compute
