#include "common/base/printable.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(EscapeControls("plain \u00e9 \u20ac"), "plain \u00e9 \u20ac");
  EXPECT_EQ(EscapeControls("\x1b[31mred\x1b]0;title\x07"), "\\u001b[31mred\\u001b]0;title\\u0007");
  EXPECT_EQ(EscapeControls("a\nb\tc\rd\x7f"), "a\\nb\\tc\\u000dd\\u007f");
  // A C1 control, which some terminals take as ESC [; a turned direction; no UTF-8.
  EXPECT_EQ(EscapeControls("\u009b1m\u202egpj.\u2066\u200f"), "\\u009b1m\\u202egpj.\\u2066\\u200f");
  EXPECT_EQ(EscapeControls("a\x9b\xff"), "a\\x9b\\xff");
  EXPECT_EQ(EscapeControls(std::string("\0", 1)), "\\u0000");
}

TEST(PrintableTest, LinesMayStayLines) {
  EXPECT_EQ(EscapeControlsInLines("a\n\tb\r\x1b\n"), "a\n\tb\\u000d\\u001b\n");
}

}  // namespace
}  // namespace cairn
