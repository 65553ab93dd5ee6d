#include "common/base/json_string.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

TEST(JsonStringTest, IsReadAgainAsItWas) {
  std::string text = "plain \"quoted\" back\\slash\nline\ttab é € 𝄞 \x7f\u0085\u202e";
  for (char c = 0; c < 0x20; ++c) text += c;
  EXPECT_EQ(nlohmann::json::parse(JsonString(text)).get<std::string>(), text);
}

TEST(JsonStringTest, HoldsNothingThatATerminalObeys) {
  EXPECT_EQ(JsonString("\x1b[31m\u009b\u202e\n"), "\"\\u001b[31m\\u009b\\u202e\\n\"");
}

TEST(JsonStringTest, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(JsonString("a\xff"), "\"a\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace cairn
