// Decode(Encode(text)) is the text, whatever it is, for every kind of vocabulary.
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/tools/random_text.h"
#include "tests/tools/seed.h"
#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kBpeNames[] = {"llama-bpe", "qwen2",  "gpt-2",
                                          "default",   "tekken", "smollm"};

void ExpectHardTextsComeBack(const Tokenizer& tokenizer, std::string_view name) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 400; ++round) {
    const std::string text = test::HardText(rng, test::VocabularyText());
    ASSERT_EQ(tokenizer.Decode(tokenizer.Encode(text, kPlain)), text) << name;
  }
}

TEST(RoundTripTest, HardTextsComeBackFromBpe) {
  for (const std::string_view pre : kBpeNames) {
    test::Vocabulary vocabulary = test::MakeBpeVocabulary(700, pre);
    vocabulary.tokens.insert(vocabulary.tokens.end(), {"<s>", "[INST]"});
    vocabulary.kinds.insert(vocabulary.kinds.end(), {test::kControlToken, test::kUserToken});
    ExpectHardTextsComeBack(*Load(vocabulary), pre);
  }
}

TEST(RoundTripTest, HardTextsComeBackFromSpm) {
  for (const bool prefix : {true, false}) {
    test::Vocabulary vocabulary = test::MakeSpmVocabulary(600);
    vocabulary.tokens.push_back("[INST]");
    vocabulary.kinds.push_back(test::kUserToken);
    vocabulary.scores.push_back(0);
    test::GgufWriter writer;
    test::AddVocabulary(vocabulary, writer);
    writer.AddBool("tokenizer.ggml.add_space_prefix", prefix);
    const auto tokenizer = LoadTokenizer(writer);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ExpectHardTextsComeBack(**tokenizer, prefix ? "with prefix" : "without prefix");
  }
}

// Looking at each of them at each place, 80 billion times, would take longer than ctest waits.
TEST(RoundTripTest, ManySpecialTokensWithOneBeginningStayQuick) {
  test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
  for (int i = 0; i < 40000; ++i) {
    vocabulary.tokens.push_back(fmt::format("<|reserved_{}|>", i));
    vocabulary.kinds.push_back(test::kControlToken);
  }
  const auto tokenizer = Load(vocabulary);
  const std::string text(1 << 21, '<');
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, kSpecial)), text);
}

}  // namespace
}  // namespace cairn::compute
