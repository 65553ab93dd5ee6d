#include "common/log/log.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(LogTest, ALineIsOneLineWhateverItQuotes) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(InitLogging("program", "info").ok());
  LogInfo("model name={}", "a\nb\x1b[31m{}");
  LogWarning("{}", "\x9b");
  LogError("{}", "\u202e");
  LogDebug("not shown");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_NE(text.find("program: model name=a\\nb\\u001b[31m{}\n"), std::string::npos) << text;
  EXPECT_NE(text.find("program: \\x9b\n"), std::string::npos) << text;
  EXPECT_NE(text.find("program: \\u202e\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace cairn
