#include "common/base/utf8.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(Utf8Test, WellFormedCharactersAreMeasured) {
  EXPECT_EQ(Utf8CharacterBytes("abc"), 1U);
  EXPECT_EQ(Utf8CharacterBytes("\xc3\xa9x"), 2U);
  EXPECT_EQ(Utf8CharacterBytes("\xe6\x97\xa5x"), 3U);
  EXPECT_EQ(Utf8CharacterBytes("\xf0\x9f\x99\x82x"), 4U);
  EXPECT_EQ(Utf8CharacterBytes(std::string_view("\0", 1)), 1U);
}

TEST(Utf8Test, IllFormedCharactersAreNone) {
  for (const std::string_view text :
       {"", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xe6\x97", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xf0\x9f\x99"}) {
    EXPECT_EQ(Utf8CharacterBytes(text), 0U) << testing::PrintToString(text);
  }
}

TEST(Utf8Test, EveryCodePointRoundTrips) {
  for (std::uint32_t code_point = 0; code_point <= 0x10ffff; ++code_point) {
    std::string text;
    AppendUtf8(code_point, text);
    if (code_point >= 0xd800 && code_point <= 0xdfff) {
      ASSERT_EQ(Utf8CharacterBytes(text), 0U) << code_point;
    } else {
      ASSERT_EQ(Utf8CharacterBytes(text), text.size()) << code_point;
      ASSERT_EQ(Utf8CodePoint(text), code_point);
    }
  }
}

TEST(Utf8Test, APrefixIsWhatMoreBytesCanComplete) {
  for (const std::string_view text : {"", "\xc3", "\xe6", "\xe6\x97", "\xf0\x9f\x99", "\xed\x9f"}) {
    EXPECT_TRUE(IsUtf8Prefix(text)) << testing::PrintToString(text);
  }
  for (const std::string_view text :
       {"a", "\x80", "\xc0", "\xff", "\xe0\x80", "\xed\xa0", "\xf0\x9f\x28", "\xc3\xa9"}) {
    EXPECT_FALSE(IsUtf8Prefix(text)) << testing::PrintToString(text);
  }
}

TEST(Utf8Test, GoodBytesEndAtTheFirstBadOne) {
  EXPECT_EQ(Utf8GoodBytes(""), 0U);
  EXPECT_EQ(Utf8GoodBytes("a\xc3\xa9\xf0\x9f\x99\x82"), 7U);
  EXPECT_EQ(Utf8GoodBytes(std::string_view("a\0b", 3)), 3U);
  EXPECT_EQ(Utf8GoodBytes("\xff\xfe"), 0U);
  EXPECT_EQ(Utf8GoodBytes("ab\xc3\xa9\xc3"), 4U);
  EXPECT_EQ(Utf8GoodBytes("ab\xed\xa0\x80 c"), 2U);
}

TEST(Utf8Test, EachBadByteBecomesOneReplacement) {
  EXPECT_EQ(ReplaceBadUtf8(""), "");
  EXPECT_EQ(ReplaceBadUtf8("a\xc3\xa9"), "a\xc3\xa9");
  EXPECT_EQ(ReplaceBadUtf8("\xff"), "\xef\xbf\xbd");
  EXPECT_EQ(ReplaceBadUtf8("\xc3\xc3\xa9\xe6\x97"), "\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Utf8Test, TextIsCutBetweenCharacters) {
  EXPECT_EQ(Utf8WholeBytes("abc", 10), 3U);
  EXPECT_EQ(Utf8WholeBytes("abc", 2), 2U);
  EXPECT_EQ(Utf8WholeBytes("a\xe6\x97\xa5z", 2), 1U);
  EXPECT_EQ(Utf8WholeBytes("a\xe6\x97\xa5z", 3), 1U);
  EXPECT_EQ(Utf8WholeBytes("a\xe6\x97\xa5z", 4), 4U);
  EXPECT_EQ(Utf8WholeBytes("a\xf0\x9f\x99\x82z", 4), 1U);
  // What is no text is cut anywhere, but always somewhere.
  EXPECT_EQ(Utf8WholeBytes("\x80\x80\x80\x80\x80\x80\x80\x80", 6), 6U);
  EXPECT_EQ(Utf8WholeBytes("\xe6\x97\xa5", 1), 1U);
}

}  // namespace
}  // namespace cairn
