#include "compute-node/model/tokenizer/vocabulary.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

absl::Status LoadStatus(const test::GgufWriter& writer) {
  const std::string bytes = writer.ToString();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  CAIRN_RETURN_IF_ERROR(file.status());
  return Vocabulary::FromGguf(**file).status();
}

void ExpectRefused(const test::GgufWriter& writer, const std::string& words) {
  const absl::Status status = LoadStatus(writer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(Message(status).find(words), std::string::npos)
      << "'" << words << "' is not in: " << status;
}

const std::vector<std::string> kTokens = {"a", "b", "c"};

TEST(VocabularyTest, TokensMustBeThereAndBeStrings) {
  ExpectRefused({}, "no tokenizer.ggml.tokens");
  test::GgufWriter empty;
  empty.AddStringArray("tokenizer.ggml.tokens", {});
  ExpectRefused(empty, "tokenizer.ggml.tokens must be an array of 1 to");
  test::GgufWriter numbers;
  numbers.AddI32Array("tokenizer.ggml.tokens", std::vector<std::int32_t>{1, 2});
  ExpectRefused(numbers, "tokenizer.ggml.tokens must be an array of 1 to");
}

TEST(VocabularyTest, ATokenThatIsTooLongIsRefused) {
  test::GgufWriter writer;
  writer.AddStringArray("tokenizer.ggml.tokens",
                        std::vector<std::string>{"a", std::string(65537, 'x')});
  ExpectRefused(writer, "token 1 has 65537 bytes, at most 65536");
}

TEST(VocabularyTest, ArraysMustAgreeInLength) {
  test::GgufWriter kinds;
  kinds.AddStringArray("tokenizer.ggml.tokens", kTokens);
  kinds.AddI32Array("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1});
  ExpectRefused(kinds,
                "tokenizer.ggml.token_type must hold 3 integers, one for each token; it has 2");
  test::GgufWriter scores;
  scores.AddStringArray("tokenizer.ggml.tokens", kTokens);
  scores.AddF32Array("tokenizer.ggml.scores", std::vector<float>(4));
  ExpectRefused(scores, "tokenizer.ggml.scores must hold 3 numbers, one for each token; it has 4");
}

TEST(VocabularyTest, KindsScoresAndIdsMustBeInRange) {
  test::GgufWriter kinds;
  kinds.AddStringArray("tokenizer.ggml.tokens", kTokens);
  kinds.AddI32Array("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 7, 1});
  ExpectRefused(kinds, "tokenizer.ggml.token_type of token 1 is 7");
  test::GgufWriter scores;
  scores.AddStringArray("tokenizer.ggml.tokens", kTokens);
  scores.AddF32Array("tokenizer.ggml.scores", std::vector<float>{0, 0, std::nanf("")});
  ExpectRefused(scores, "tokenizer.ggml.scores of token 2 is not a number");
  for (const std::string key : {"bos", "eos", "eot", "eom", "unknown"}) {
    test::GgufWriter ids;
    ids.AddStringArray("tokenizer.ggml.tokens", kTokens);
    ids.AddU32("tokenizer.ggml." + key + "_token_id", 3);
    ExpectRefused(ids, "tokenizer.ggml." + key + "_token_id is 3, but the vocabulary has 3 tokens");
    test::GgufWriter text;
    text.AddStringArray("tokenizer.ggml.tokens", kTokens);
    text.AddString("tokenizer.ggml." + key + "_token_id", "1");
    ExpectRefused(text, "_token_id is not an integer");
  }
}

TEST(VocabularyTest, AnIdOfAllOnesMeansNone) {
  test::GgufWriter writer;
  writer.AddStringArray("tokenizer.ggml.tokens", kTokens);
  writer.AddU32("tokenizer.ggml.bos_token_id", 0xffffffff);
  EXPECT_TRUE(LoadStatus(writer).ok());
}

TEST(VocabularyTest, TheLowestIdOfEqualTextsIsFound) {
  test::GgufWriter writer;
  writer.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "b", "b"});
  const std::string bytes = writer.ToString();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok());
  const auto vocabulary = Vocabulary::FromGguf(**file);
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ((*vocabulary)->Find("b"), 1);
  EXPECT_EQ((*vocabulary)->Find("z"), std::nullopt);
}

}  // namespace
}  // namespace cairn::compute
