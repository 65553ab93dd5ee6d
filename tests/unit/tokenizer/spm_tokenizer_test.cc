#include "compute-node/model/tokenizer/spm_tokenizer.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/says.h"
#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

// 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then pieces with scores.
constexpr std::int32_t kFirstPiece = 259;

test::Vocabulary SmallVocabulary(const std::vector<std::pair<std::string, float>>& pieces) {
  test::Vocabulary out = test::MakeSpmVocabulary(512);
  out.tokens.resize(kFirstPiece);
  out.kinds.resize(kFirstPiece);
  out.scores.resize(kFirstPiece);
  for (const auto& [text, score] : pieces) {
    out.tokens.push_back(text);
    out.kinds.push_back(test::kNormalToken);
    out.scores.push_back(score);
  }
  return out;
}

constexpr std::int32_t ByteId(int byte) { return 3 + byte; }

TEST(SpmTokenizerTest, TheHighestScoreMergesFirst) {
  // "abc": "bc" (-1) goes before "ab" (-2), so that "abc" is made of a + bc.
  const auto tokenizer = Load(SmallVocabulary(
      {{"\u2581", -9.0F}, {"a", -9.0F}, {"b", -9.0F}, {"c", -9.0F}, {"ab", -2.0F}, {"bc", -1.0F}}));
  EXPECT_EQ(tokenizer->Encode("abc", kPlain), (Ids{kFirstPiece, kFirstPiece + 1, kFirstPiece + 5}));
  EXPECT_EQ(tokenizer->Encode("ab", kPlain), (Ids{kFirstPiece, kFirstPiece + 4}));
}

TEST(SpmTokenizerTest, TheLeftmostOfEqualScoresMergesFirst) {
  const auto tokenizer = Load(SmallVocabulary({{"\u2581", -9.0F}, {"a", -9.0F}, {"aa", -1.0F}}));
  EXPECT_EQ(tokenizer->Encode("aaa", kPlain), (Ids{kFirstPiece, kFirstPiece + 2, kFirstPiece + 1}));
}

TEST(SpmTokenizerTest, ASpaceIsPutInFrontAndTakenOffAgain) {
  const auto tokenizer =
      Load(SmallVocabulary({{"\u2581", -9.0F}, {"a", -9.0F}, {"\u2581a", -1.0F}}));
  EXPECT_EQ(tokenizer->Encode("a a", kPlain), (Ids{kFirstPiece + 2, kFirstPiece + 2}));
  EXPECT_EQ(tokenizer->Decode(Ids{kFirstPiece + 2, kFirstPiece + 2}), "a a");
  EXPECT_EQ(tokenizer->DecodePiece(kFirstPiece + 2), " a");
  // After a special token a new text starts.
  EXPECT_EQ(tokenizer->Encode("a</s>a", kSpecial), (Ids{1, kFirstPiece + 2, 2, kFirstPiece + 2}));
  EXPECT_EQ(tokenizer->Encode("", kPlain), Ids{});
  EXPECT_EQ(tokenizer->Encode("", kSpecial), (Ids{1}));
}

TEST(SpmTokenizerTest, TheFileCanTurnTheSpaceOff) {
  test::GgufWriter writer;
  test::AddVocabulary(SmallVocabulary({{"\u2581", -9.0F}, {"a", -9.0F}, {"\u2581a", -1.0F}}),
                      writer);
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = LoadTokenizer(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("a a", kPlain), (Ids{kFirstPiece + 1, kFirstPiece + 2}));
  EXPECT_EQ((*tokenizer)->Decode(Ids{kFirstPiece + 2}), " a");
}

TEST(SpmTokenizerTest, UnknownCharactersAndStrayBytesBecomeByteTokens) {
  const auto tokenizer = Load(SmallVocabulary({{"\u2581", -9.0F}}));
  EXPECT_EQ(tokenizer->Encode("\u20ac\xff", kPlain),
            (Ids{kFirstPiece, ByteId(0xe2), ByteId(0x82), ByteId(0xac), ByteId(0xff)}));
  EXPECT_EQ(tokenizer->Decode(Ids{ByteId(0xe2), ByteId(0x82), ByteId(0xac)}), "\u20ac");
}

TEST(SpmTokenizerTest, PlainTextNeverBecomesAControlToken) {
  // "</" + "s>" spell the end token, whose score 0 would be the best of all.
  const auto tokenizer = Load(SmallVocabulary({{"\u2581", -9.0F},
                                               {"<", -9.0F},
                                               {"/", -9.0F},
                                               {"s", -9.0F},
                                               {">", -9.0F},
                                               {"</", -1.0F},
                                               {"s>", -2.0F}}));
  EXPECT_EQ(tokenizer->Encode("</s>", kPlain),
            (Ids{kFirstPiece, kFirstPiece + 5, kFirstPiece + 6}));
  EXPECT_EQ(tokenizer->Encode("</s>", kSpecial), (Ids{1, 2}));
}

TEST(SpmTokenizerTest, DefaultsOfTheFamily) {
  test::Vocabulary vocabulary = SmallVocabulary({{"\u2581", -9.0F}});
  test::GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStringArray("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.AddF32Array("tokenizer.ggml.scores", vocabulary.scores);
  writer.AddI32Array("tokenizer.ggml.token_type", vocabulary.kinds);
  const auto tokenizer = LoadTokenizer(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->adds_bos());
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(2));
}

TEST(SpmTokenizerTest, TheCharacterThatStandsForASpaceStaysItself) {
  const auto tokenizer =
      Load(SmallVocabulary({{"\u2581", -9.0F}, {"a", -9.0F}, {"\u2581a", -1.0F}}));
  EXPECT_EQ(tokenizer->Encode("a\u2581a", kPlain),
            (Ids{kFirstPiece + 2, ByteId(0xe2), ByteId(0x96), ByteId(0x81), kFirstPiece + 1}));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("\u2581", kPlain)), "\u2581");
}

TEST(SpmTokenizerTest, TheTextOfTheVocabularyIsCompressed) {
  const auto ids = Load(test::MakeSpmVocabulary(512))->Encode(test::VocabularyText(), kPlain);
  EXPECT_LT(ids.size() * 3, test::VocabularyText().size() * 2);
}

// Quadratic work would take hours.
TEST(SpmTokenizerTest, AMegabyteWithoutSpacesIsQuick) {
  const auto tokenizer = Load(test::MakeSpmVocabulary(512));
  EXPECT_GT(tokenizer->Encode(std::string(1 << 20, 't'), kPlain).size(), 1000U);
}

TEST(SpmTokenizerTest, KindsMustBeThere) {
  const test::Vocabulary vocabulary = SmallVocabulary({{"\u2581", -9.0F}});
  test::GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStringArray("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.AddF32Array("tokenizer.ggml.scores", vocabulary.scores);
  const auto tokenizer = LoadTokenizer(writer);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(test::Says(tokenizer.status(), "tokenizer.ggml.token_type is missing"));
}

TEST(SpmTokenizerTest, MissingScoresAndMisnamedBytesAreRefused) {
  test::Vocabulary vocabulary = SmallVocabulary({{"\u2581", -9.0F}});
  vocabulary.scores.clear();
  EXPECT_EQ(LoadTokenizer(vocabulary).status().code(), absl::StatusCode::kInvalidArgument);
  vocabulary = SmallVocabulary({{"\u2581", -9.0F}});
  vocabulary.tokens[5] = "<0xZZ>";
  EXPECT_EQ(LoadTokenizer(vocabulary).status().code(), absl::StatusCode::kInvalidArgument);
}

// Random words of few letters, so that whatever can be merged is.
std::string RandomText(std::string_view letters, std::size_t size, std::mt19937_64& random) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += letters[random() % letters.size()];
  return text;
}

TEST(SpmTokenizerTest, ALongTextHasTheTokensOfItsWords) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  test::GgufWriter writer;
  test::AddVocabulary(SmallVocabulary({{"\u2581", -9.0F},
                                       {"a", -9.0F},
                                       {"b", -9.0F},
                                       {"ab", -1.0F},
                                       {"\u2581a", -2.0F},
                                       {"ba", -3.0F},
                                       {"\u2581ab", -4.0F},
                                       {"\u2581\u2581", -5.0F},
                                       {"bb", -6.0F}}),
                      writer);
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = LoadTokenizer(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // No token has a space behind a letter.
  std::string text;
  Ids ids;
  for (int i = 0; i < 4000; ++i) {
    const std::string word =
        RandomText(" ", 1 + random() % 3, random) + RandomText("ab", 1 + random() % 9, random);
    const Ids of_word = (*tokenizer)->Encode(word, kPlain);
    text += word;
    ids.insert(ids.end(), of_word.begin(), of_word.end());
  }
  EXPECT_EQ((*tokenizer)->Encode(text, kPlain), ids);
}

TEST(SpmTokenizerTest, ALongTextIsNotCutWhereATokenMayBe) {
  const auto tokenizer = Load(SmallVocabulary(
      {{"\u2581", -9.0F}, {"a", -9.0F}, {"a\u2581", -1.0F}, {"a\u2581a", -0.5F}, {".", -9.0F}}));
  // Nothing is merged with the full stop; all else is one run.
  const std::string sentence = "a a a a a a a.";
  const Ids first = tokenizer->Encode(sentence, kPlain);
  Ids following = tokenizer->Encode("." + sentence, kPlain);
  following.erase(following.begin(), following.begin() + 2);  // the space in front and the stop
  std::string text;
  Ids ids;
  for (int i = 0; i < 2000; ++i) {
    text += sentence;
    const Ids& of_sentence = i == 0 ? first : following;
    ids.insert(ids.end(), of_sentence.begin(), of_sentence.end());
  }
  EXPECT_EQ(tokenizer->Encode(text, kPlain), ids);
}

TEST(SpmTokenizerTest, AVeryLongRunIsStillItsText) {
  const auto tokenizer = Load(SmallVocabulary({{"\u2581", -9.0F},
                                               {"a", -9.0F},
                                               {"aa", -1.0F},
                                               {"\u00e4", -9.0F},
                                               {"\u00e4\u00e4", -1.0F}}));
  for (const std::string_view character : {"a", "\u00e4"}) {
    std::string run;
    for (int i = 0; i < 200001; ++i) run += character;
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(run, kPlain)), run);
  }
}

TEST(SpmTokenizerTest, EncodingEndsBehindTheMostTokens) {
  const auto tokenizer =
      Load(SmallVocabulary({{"\u2581", -9.0F}, {"a", -9.0F}, {"\u2581a", -1.0F}}));
  std::string text;
  for (int i = 0; i < 100000; ++i) text += " a";
  EncodeOptions options = kPlain;
  options.tokens_max = 1000;
  const Ids ids = tokenizer->Encode(text, options);
  EXPECT_GT(ids.size(), 1000U);
  EXPECT_LT(ids.size(), 10000U);
  EXPECT_GT(
      tokenizer->EncodePieces(std::vector<PromptPiece>{{PromptPiece::Kind::kText, text}}, 1000)
          .size(),
      1000U);
}

}  // namespace
}  // namespace cairn::compute
