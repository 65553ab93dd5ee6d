#include "compute-node/session/stop_text.h"

#include <gtest/gtest.h>

#include "common/base/utf8.h"

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

// "bc" is complete before "abcd", wherever the pieces end.
TEST(StopTextTest, TheStopThatIsCompleteFirstCounts) {
  for (const std::size_t piece : {1U, 2U, 3U, 4U, 100U}) {
    StopText stop({"abcd", "bc"});
    EXPECT_EQ(Feed(stop, "xabcd", piece), "xa") << piece;
    EXPECT_TRUE(stop.matched());
    StopText longest({"c", "abc", "bc"});
    EXPECT_EQ(Feed(longest, "xabcd", piece), "x") << piece;
    StopText first({"aba"});
    EXPECT_EQ(Feed(first, "xababa", piece), "x") << piece;
  }
}

TEST(StopTextTest, AMatchMayBeginInAPartialOne) {
  for (const std::size_t piece : {1U, 2U, 3U, 100U}) {
    StopText stop({"aabaac"});
    EXPECT_EQ(Feed(stop, "aabaabaac", piece), "aab") << piece;
    EXPECT_TRUE(stop.matched());
  }
}

TEST(StopTextTest, TheFirstPieceMayBeTheStop) {
  StopText stop({"x"});
  EXPECT_EQ(stop.Append("xyz"), "");
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.Finish(), "");
}

TEST(StopTextTest, AStopLongerThanTheTextIsHeldBackAndThenShown) {
  StopText stop({"abcdef"});
  EXPECT_EQ(stop.Append("abc"), "");
  EXPECT_EQ(stop.Append("de"), "");
  EXPECT_EQ(stop.Finish(), "abcde");
  EXPECT_FALSE(stop.matched());
}

TEST(StopTextTest, CharactersStayWhole) {
  // U+00E9 and U+00E8 begin with one byte, U+20AC has three.
  const std::vector<std::string_view> pieces = {"caf\xc3\xa9", " \xe2\x82\xac", "\xc3\xa8", "!"};
  StopText stop({"\xc3\xa9 \xe2\x82\xac?", "\xc3\xa8!"});
  std::string shown;
  for (const std::string_view piece : pieces) {
    const std::string out = stop.Append(piece);
    EXPECT_EQ(Utf8GoodBytes(out), out.size()) << out;
    shown += out;
  }
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(shown, "caf\xc3\xa9 \xe2\x82\xac");
}

TEST(StopTextTest, ANameIsFoundAndNeverShown) {
  for (const std::string stop_text : {"<|x|>", "<|", "x|>", "a<|x|>", "<|x|>b", "a<|x|>b"}) {
    StopText stop({stop_text});
    std::string shown = stop.Append("an a");
    shown += stop.AppendNamed("<|x|>", "");
    shown += stop.Append("b c");
    EXPECT_EQ(shown, stop_text[0] == 'a' ? "an " : "an a") << stop_text;
    EXPECT_EQ(stop.match(), stop_text);
  }
}

TEST(StopTextTest, WhatIsHeldBackForANameIsShownWithoutIt) {
  StopText stop({"a<|x|>b", "<|y|>"});
  EXPECT_EQ(stop.Append("xa"), "x");
  EXPECT_EQ(stop.AppendNamed("<|x|>", ""), "");
  EXPECT_EQ(stop.Append("c"), "ac");
  EXPECT_EQ(stop.Append("a"), "");
  EXPECT_EQ(stop.AppendNamed("<|x|>", ""), "");
  EXPECT_EQ(stop.Finish(), "a");
  EXPECT_FALSE(stop.matched());
}

TEST(StopTextTest, AStopInWhatIsShownIsFoundAcrossNames) {
  StopText stop({"abc"});
  std::string shown = stop.Append("xa");
  // However many come between.
  for (int i = 0; i < 1000; ++i) shown += stop.AppendNamed("<|x|>", "");
  shown += stop.Append("b");
  shown += stop.AppendNamed("<|y|>", "");
  shown += stop.Append("cd");
  EXPECT_EQ(shown, "x");
  EXPECT_TRUE(stop.matched());
}

TEST(StopTextTest, ATokenMayBeShownOtherwiseThanByItsName) {
  for (const std::string stop_text : {"<unk>", "a\ufffdb", "a<unk>b"}) {
    StopText stop({stop_text});
    std::string shown = stop.Append("xa");
    shown += stop.AppendNamed("<unk>", "\ufffd");
    shown += stop.Append("b");
    EXPECT_EQ(shown, stop_text[0] == 'a' ? "x" : "xa") << stop_text;
  }
  StopText stop({"<unk>!"});
  EXPECT_EQ(stop.AppendNamed("<unk>", "\ufffd"), "");
  EXPECT_EQ(stop.Append("?"), "\ufffd?");
}

TEST(StopTextTest, WithoutStopsEverythingPasses) {
  StopText stop({""});
  EXPECT_EQ(stop.Append("text"), "text");
}

}  // namespace
}  // namespace cairn::compute
