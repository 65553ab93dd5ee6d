#include "common/rpc/status_mapping.h"

#include <gtest/gtest.h>

namespace cairn::rpc {
namespace {

TEST(StatusMappingTest, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << code;
  }
}

TEST(StatusMappingTest, NumberThatNoCodeHasIsUnknown) {
  EXPECT_EQ(FailureCodeFromNumber(0), absl::StatusCode::kUnknown);
  EXPECT_EQ(FailureCodeFromNumber(17), absl::StatusCode::kUnknown);
  EXPECT_EQ(FailureCodeFromNumber(-5), absl::StatusCode::kUnknown);
  EXPECT_EQ(FailureCodeFromNumber(15), absl::StatusCode::kDataLoss);
}

TEST(StatusMappingTest, LongMessageIsCutBetweenCharacters) {
  std::string text;
  while (text.size() < 3 * kStatusMessageBytesMax) text += "\xC3\xA4";
  const std::string cut = CleanMessage("x" + text);
  EXPECT_LE(cut.size(), kStatusMessageBytesMax);
  EXPECT_EQ(cut, ("x" + text).substr(0, cut.size()));
  EXPECT_EQ(cut.size() % 2, 1U);
}

TEST(StatusMappingTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(CleanMessage("path \xFF\x80 end"), "path ?? end");
  EXPECT_EQ(CleanMessage("\xED\xA0\x80"), "???");  // a surrogate
  EXPECT_EQ(CleanMessage("\xC3\xA4 fine"), "\xC3\xA4 fine");
}

}  // namespace
}  // namespace cairn::rpc
