#include "clients/cpp/request_check.h"

#include <string>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(RequestCheckTest, TextsThatAreNotUtf8AreRefusedWithByteAndOffset) {
  EXPECT_TRUE(CheckUtf8("--label", "").ok());
  EXPECT_TRUE(CheckUtf8("--label", "na\xc3\xafve \xf0\x9f\x99\x82").ok());
  const absl::Status status = CheckUtf8("--label", "abc\xff");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Message(status).starts_with("--label is not UTF-8: bad byte 0xff at offset 3;"))
      << status;
}

TEST(RequestCheckTest, PromptsAboveTheLimitAreRefusedWithSizeAndLimit) {
  std::string text(kPromptBytesMax, 'a');
  EXPECT_TRUE(CheckPrompt("the prompt", text).ok());
  text += 'a';
  const absl::Status status = CheckPrompt("the prompt", text);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Message(status).starts_with("the prompt has 16777217 bytes: at most 16777216;"))
      << status;
}

TEST(RequestCheckTest, EveryTextOfARequestIsChecked) {
  GenerateOptions options;
  options.prompt = "fine";
  options.label = "fine";
  options.stop = {"fine", "fine"};
  options.messages = {{"user", "fine"}};
  EXPECT_TRUE(CheckTexts(options).ok());
  for (std::string* text : {&options.prompt, &options.label, &options.stop[1],
                            &options.messages[0].role, &options.messages[0].content}) {
    const std::string before = *text;
    *text = "\xff";
    EXPECT_EQ(CheckTexts(options).code(), absl::StatusCode::kInvalidArgument);
    *text = before;
  }
}

TEST(RequestCheckTest, MessagesTogetherAreBounded) {
  GenerateOptions options;
  options.messages.assign(2, {"user", std::string(kPromptBytesMax / 2, 'a')});
  EXPECT_TRUE(CheckTexts(options).ok());
  options.messages[0].content += 'a';
  EXPECT_EQ(CheckTexts(options).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestCheckTest, RequestsAboveTheMessageLimitAreRefused) {
  EXPECT_TRUE(CheckRequestBytes(kRequestBytesMax).ok());
  EXPECT_EQ(CheckRequestBytes(kRequestBytesMax + 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
