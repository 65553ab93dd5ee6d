#include "compute-node/model/tokenizer/pre_tokenizer.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces Split(std::string_view name, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::Create(name);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  Pieces pieces;
  (*pre_tokenizer)->ForEachPiece(text, [&pieces](std::string_view piece) {
    pieces.push_back(piece);
    return true;
  });
  return pieces;
}

TEST(PreTokenizerTest, WordsTakeTheSpaceBeforeThem) {
  for (const std::string_view name : {"llama-bpe", "qwen2", "gpt-2", "default"}) {
    EXPECT_EQ(Split(name, "two words"), (Pieces{"two", " words"})) << name;
    EXPECT_EQ(Split(name, "a  b"), (Pieces{"a", " ", " b"})) << name;
  }
}

TEST(PreTokenizerTest, NumbersAreCutAsEachFamilyDoes) {
  EXPECT_EQ(Split("llama-bpe", "12345"), (Pieces{"123", "45"}));
  EXPECT_EQ(Split("qwen2", "12345"), (Pieces{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(Split("gpt-2", "a 12345"), (Pieces{"a", " 12345"}));
  EXPECT_EQ(Split("default", "a 12345"), (Pieces{"a", " ", "123", "45"}));
  EXPECT_EQ(Split("tekken", "a 12"), (Pieces{"a", " ", "1", "2"}));
  EXPECT_EQ(Split("smollm", "a 12"), (Pieces{"a", " ", "1", "2"}));
}

TEST(PreTokenizerTest, TekkenTellsCapitalsFromSmallLetters) {
  EXPECT_EQ(Split("tekken", "helloWorld HTTPServer"), (Pieces{"hello", "World", " HTTPServer"}));
  EXPECT_EQ(Split("tekken", "it's"), (Pieces{"it", "'s"}));
  EXPECT_EQ(Split("tekken", "a //\n//b"), (Pieces{"a", " //\n//", "b"}));
  // A mark continues a word.
  EXPECT_EQ(Split("tekken", "e\u0301a"), (Pieces{"e\u0301a"}));
}

TEST(PreTokenizerTest, ContractionsIgnoreCaseExceptInGpt2) {
  EXPECT_EQ(Split("llama-bpe", "I'LL it's"), (Pieces{"I", "'LL", " it", "'s"}));
  EXPECT_EQ(Split("gpt-2", "I'll I'LL"), (Pieces{"I", "'ll", " I", "'", "LL"}));
}

TEST(PreTokenizerTest, PunctuationAndLineBreaks) {
  EXPECT_EQ(Split("llama-bpe", "end.\n\n  x(y)"), (Pieces{"end", ".\n\n", " ", " x", "(y", ")"}));
  EXPECT_EQ(Split("gpt-2", "end.\n\n  x"), (Pieces{"end", ".", "\n\n ", " x"}));
  EXPECT_EQ(Split("default", "a=$b.c"), (Pieces{"a", "=$", "b", ".", "c"}));
}

TEST(PreTokenizerTest, UnicodeLettersNumbersAndSpaces) {
  EXPECT_EQ(Split("qwen2", "\u00e9t\u00e9\u3000\u65e5\u672c \u0661\u0662"),
            (Pieces{"\u00e9t\u00e9", "\u3000\u65e5\u672c", " ", "\u0661", "\u0662"}));
  // U+180E was white space in old versions of Unicode and is not any more.
  EXPECT_EQ(Split("gpt-2", " \u180e "), (Pieces{" \u180e", " "}));
}

TEST(PreTokenizerTest, BytesThatAreNotUtf8ArePiecesOfTheirOwn) {
  EXPECT_EQ(Split("llama-bpe",
                  "ab\xff\xfe"
                  "cd"),
            (Pieces{"ab", "\xff\xfe", "cd"}));
  EXPECT_EQ(Split("default", "\xe6\x97 x"), (Pieces{"\xe6\x97", " x"}));
}

TEST(PreTokenizerTest, EmptyTextHasNoPieces) { EXPECT_TRUE(Split("gpt-2", "").empty()); }

TEST(PreTokenizerTest, AnUnknownNameIsRefusedAndTheKnownOnesNamed) {
  const auto status = PreTokenizer::Create("no-such-name").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.ToString().find("'no-such-name'"), std::string::npos);
  EXPECT_NE(status.ToString().find("llama-bpe"), std::string::npos);
}

// More steps back than the regular expressions' engine makes by default; a prompt may have 16 MiB.
TEST(PreTokenizerTest, TheLongestRunsComeBackWhole) {
  for (const std::string_view name : {"llama-bpe", "qwen2", "gpt-2", "default", "tekken"}) {
    for (const char c : {' ', 'A'}) {
      const std::string run(std::size_t{11} << 20, c);
      EXPECT_EQ(Split(name, run), Pieces{run}) << name;
    }
  }
}

// Quadratic work would take hours for these sizes.
TEST(PreTokenizerTest, OneHugePieceOrManySmallOnesStayQuick) {
  std::string words;
  for (int i = 0; i < 200000; ++i) {
    words += "a ";
  }
  for (const std::string_view name : {"llama-bpe", "qwen2", "gpt-2", "default"}) {
    EXPECT_EQ(Split(name, words).size(), 200001U);
    for (const char c : {' ', '\n', 'x', '.', '\''}) {
      const std::string run(1 << 20, c);
      std::size_t bytes = 0;
      for (const std::string_view piece : Split(name, run)) {
        bytes += piece.size();
      }
      EXPECT_EQ(bytes, run.size());
    }
  }
}

}  // namespace
}  // namespace cairn::compute
