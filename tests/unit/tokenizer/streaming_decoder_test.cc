#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/utf8.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

class StreamingDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = LoadTokenizer(HelloVocabulary("gpt-2"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // What each token gives, then what Finish gives. The vocabulary has one token a byte.
  std::vector<std::string> Stream(std::string_view bytes) {
    StreamingDecoder decoder(*tokenizer_);
    std::vector<std::string> out;
    for (const char c : bytes) {
      out.push_back(decoder.Append(static_cast<unsigned char>(c)));
    }
    out.push_back(decoder.Finish());
    return out;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StreamingDecoderTest, OnlyWholeCharactersComeOut) {
  EXPECT_EQ(Stream("a\u20acb"), (std::vector<std::string>{"a", "", "", "\u20ac", "b", ""}));
  EXPECT_EQ(Stream("\U0001f642"), (std::vector<std::string>{"", "", "", "\U0001f642", ""}));
}

TEST_F(StreamingDecoderTest, BytesThatCannotBecomeACharacterAreReplaced) {
  EXPECT_EQ(Stream("\xff"), (std::vector<std::string>{"\ufffd", ""}));
  EXPECT_EQ(Stream("\xe2("), (std::vector<std::string>{"", "\ufffd(", ""}));
  EXPECT_EQ(Stream("\xed\xa0"), (std::vector<std::string>{"", "\ufffd\ufffd", ""}));
}

TEST_F(StreamingDecoderTest, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  EXPECT_EQ(Stream("a\xe2\x82"), (std::vector<std::string>{"a", "", "", "\ufffd\ufffd"}));
}

TEST_F(StreamingDecoderTest, ControlTokensAreSilent) {
  StreamingDecoder decoder(*tokenizer_);
  EXPECT_EQ(decoder.Append(265), "");
  EXPECT_EQ(decoder.Append(259), "hello");
  EXPECT_EQ(decoder.Append(264), " world");
  EXPECT_EQ(decoder.Append(266), "");
  EXPECT_EQ(decoder.Append(1 << 20), "");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST_F(StreamingDecoderTest, WhatComesOutIsAlwaysUtf8) {
  StreamingDecoder decoder(*tokenizer_);
  std::uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525 + 1013904223;
    const std::string text = decoder.Append(static_cast<std::int32_t>(state >> 24));
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t bytes = Utf8CharacterBytes(rest);
      ASSERT_GT(bytes, 0U);
      rest.remove_prefix(bytes);
    }
  }
}

}  // namespace
}  // namespace cairn::compute
