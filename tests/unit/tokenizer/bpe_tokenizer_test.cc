#include "compute-node/model/tokenizer/bpe_tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/says.h"
#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

TEST(BpeTokenizerTest, MergesInTheOrderOfTheList) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  EXPECT_EQ(tokenizer->Encode("hello world", kPlain), (Ids{259, 264}));
  EXPECT_EQ(tokenizer->Encode("hell", kPlain), (Ids{258}));
  // Without "he" there is nothing that "ll" could join.
  EXPECT_EQ(tokenizer->Encode("llo", kPlain), (Ids{257, 'o'}));
  // Of three l the leftmost two are merged.
  EXPECT_EQ(tokenizer->Encode("lll", kPlain), (Ids{257, 'l'}));
}

TEST(BpeTokenizerTest, ControlTokensOnlyWhenAskedUserDefinedOnesAlways) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  EXPECT_EQ(tokenizer->Encode("hello<|eot_id|>hello", kSpecial), (Ids{265, 259, 266, 259}));
  EXPECT_EQ(tokenizer->Encode("hello<tool>", kSpecial), (Ids{265, 259, 267}));
  for (const std::int32_t id : tokenizer->Encode("hello<|eot_id|>", kPlain)) {
    EXPECT_LT(id, 265);
  }
  EXPECT_EQ(tokenizer->Encode("hello<tool>", kPlain), (Ids{259, 267}));
  EXPECT_EQ(tokenizer->Encode("hello", EncodeOptions{.add_special = true, .parse_special = false}),
            (Ids{265, 259}));
}

TEST(BpeTokenizerTest, TheLongestSpecialTokenWins) {
  test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
  vocabulary.tokens.push_back("<tool>s");
  vocabulary.kinds.push_back(test::kControlToken);
  const auto tokenizer = Load(vocabulary);
  EXPECT_EQ(tokenizer->Encode("<tool>s<tool>", kSpecial), (Ids{265, 268, 267}));
}

TEST(BpeTokenizerTest, EmptyTextIsOnlyWhatIsAdded) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  EXPECT_EQ(tokenizer->Encode("", kPlain), Ids{});
  EXPECT_EQ(tokenizer->Encode("", kSpecial), (Ids{265}));
}

TEST(BpeTokenizerTest, WholePiecesAreTakenWithoutMergesOnlyByLlamaBpe) {
  for (const auto& [pre, expected] :
       std::vector<std::pair<std::string, Ids>>{{"llama-bpe", {268}}, {"qwen2", {'x', 'y', 'z'}}}) {
    test::Vocabulary vocabulary = HelloVocabulary(pre);
    vocabulary.tokens.push_back("xyz");  // no merge makes it
    vocabulary.kinds.push_back(test::kNormalToken);
    EXPECT_EQ(Load(vocabulary)->Encode("xyz", kPlain), expected) << pre;
  }
}

TEST(BpeTokenizerTest, PlainTextNeverBecomesAControlToken) {
  test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
  vocabulary.tokens.push_back("stop");
  vocabulary.kinds.push_back(test::kControlToken);
  EXPECT_EQ(Load(vocabulary)->Encode("stop", kPlain), (Ids{'s', 't', 'o', 'p'}));
  // Nor by merging.
  vocabulary.merges.insert(vocabulary.merges.end(), {"s t", "o p", "st op"});
  EXPECT_EQ(Load(vocabulary)->Encode(" stop", kPlain), (Ids{' ', 's', 't', 'o', 'p'}));
}

TEST(BpeTokenizerTest, AMergedTextThatIsNoTokenFallsBackToItsBytes) {
  test::Vocabulary vocabulary = HelloVocabulary("qwen2");
  vocabulary.merges.push_back("q u");
  EXPECT_EQ(Load(vocabulary)->Encode("qu", kPlain), (Ids{'q', 'u'}));
}

// In the byte alphabet of GPT-2 the token of a byte b in 0x21..0x7e has the id b in our
// vocabularies.
TEST(BpeTokenizerTest, EveryByteHasItsToken) {
  const auto tokenizer = Load(HelloVocabulary("gpt-2"));
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ(tokenizer->Encode(text, kPlain), (Ids{byte}));
    EXPECT_EQ(tokenizer->DecodePiece(byte), text);
  }
}

TEST(BpeTokenizerTest, ControlTokensDecodeToNothingUnlessRendered) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  const Ids ids = {265, 259, 267, 266};
  EXPECT_EQ(tokenizer->Decode(ids), "hello<tool>");
  EXPECT_EQ(tokenizer->Decode(ids, true), "<|begin_of_text|>hello<tool><|eot_id|>");
  EXPECT_EQ(tokenizer->DecodePiece(-1), "");
  EXPECT_EQ(tokenizer->DecodePiece(100000), "");
}

TEST(BpeTokenizerTest, EndOfGenerationIsEosAndTheKnownTurnEnds) {
  test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
  vocabulary.eos_id = 264;
  const auto tokenizer = Load(vocabulary);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(264));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(266));  // <|eot_id|>
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(265));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(-1));
  EXPECT_EQ(tokenizer->bos_id(), 265);
  EXPECT_EQ(tokenizer->eos_id(), 264);
  EXPECT_EQ(tokenizer->vocab_size(), 268);
}

TEST(BpeTokenizerTest, TheTextOfTheVocabularyIsCompressed) {
  const auto tokenizer = Load(test::MakeBpeVocabulary(600, "llama-bpe"));
  const std::size_t count = tokenizer->Encode(test::VocabularyText(), kPlain).size();
  EXPECT_LT(count * 2, test::VocabularyText().size());
}

// Quadratic work would take hours.
TEST(BpeTokenizerTest, OnePieceOfAMegabyteIsQuick) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  EXPECT_EQ(tokenizer->Encode(std::string(1 << 20, 'l'), kPlain).size(), (1U << 20) / 2);
}

TEST(BpeTokenizerTest, MalformedMergesAreRefused) {
  for (const std::string& merge : std::vector<std::string>{"", "ab", " ab", "ab ", "a b c", " "}) {
    test::Vocabulary vocabulary = HelloVocabulary("qwen2");
    vocabulary.merges.push_back(merge);
    const auto status = LoadTokenizer(vocabulary).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "merge '" << merge << "'";
    EXPECT_NE(status.ToString().find("merge 9"), std::string::npos) << status;
  }
}

TEST(BpeTokenizerTest, MissingMergesAreRefused) {
  test::GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddStringArray("tokenizer.ggml.tokens", HelloVocabulary("gpt-2").tokens);
  const auto status = LoadTokenizer(writer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.ToString().find("tokenizer.ggml.merges"), std::string::npos) << status;
}

TEST(BpeTokenizerTest, AMissingByteIsRefused) {
  test::Vocabulary vocabulary = HelloVocabulary("gpt-2");
  vocabulary.tokens['Z'] = "something else";
  const auto status = LoadTokenizer(vocabulary).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.ToString().find("0x5a"), std::string::npos) << status;
}

TEST(BpeTokenizerTest, UnknownPreTokenizerAndModelAreRefused) {
  test::Vocabulary vocabulary = HelloVocabulary("gpt-2");
  vocabulary.pre = "no-such-name";
  EXPECT_EQ(LoadTokenizer(vocabulary).status().code(), absl::StatusCode::kUnimplemented);
  vocabulary = HelloVocabulary("gpt-2");
  vocabulary.model = "bert";
  const auto status = LoadTokenizer(vocabulary).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.ToString().find("'bert'"), std::string::npos) << status;
}

// They could play with a terminal, or begin a line of a report.
TEST(BpeTokenizerTest, ErrorsShowNoControlCharacters) {
  constexpr std::string_view kEvil = "\x1b[2J\nruns: yes";
  const auto expect_printable = [](const absl::Status& status) {
    EXPECT_TRUE(test::Says(status, "?[2J?runs: yes")) << status;
    EXPECT_FALSE(test::Says(status, "\x1b") || test::Says(status, "\n")) << status;
  };
  test::Vocabulary vocabulary = HelloVocabulary("gpt-2");
  vocabulary.merges[3] = kEvil;
  vocabulary.merges[3] += " c";
  expect_printable(LoadTokenizer(vocabulary).status());
  expect_printable(LoadTokenizer(HelloVocabulary(kEvil)).status());
  test::GgufWriter model;
  model.AddString("tokenizer.ggml.model", std::string(kEvil));
  expect_printable(LoadTokenizer(model).status());
  vocabulary = test::MakeSpmVocabulary(384);
  vocabulary.tokens[5] = kEvil;
  expect_printable(LoadTokenizer(vocabulary).status());
}

TEST(BpeTokenizerTest, AliasesAreTheSame) {
  for (const std::string_view pre : {"llama3", "llama-v3"}) {
    test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
    vocabulary.pre = pre;
    EXPECT_EQ(Load(vocabulary)->Encode("hello world 1234", kPlain),
              Load(HelloVocabulary("llama-bpe"))->Encode("hello world 1234", kPlain));
  }
}

TEST(BpeTokenizerTest, AVeryLongPieceIsStillItsText) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  for (const std::string_view character : {"l", "\u00e4", " "}) {
    std::string run;
    for (int i = 0; i < 200001; ++i) run += character;
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(run, kPlain)), run);
  }
}

TEST(BpeTokenizerTest, EncodingEndsBehindTheMostTokens) {
  const auto tokenizer = Load(HelloVocabulary("llama-bpe"));
  for (const std::string_view word : {" x", "x"}) {
    std::string text;
    for (int i = 0; i < 400000; ++i) text += word;
    EncodeOptions options = kPlain;
    options.tokens_max = 1000;
    const Ids ids = tokenizer->Encode(text, options);
    EXPECT_GT(ids.size(), 1000U);
    EXPECT_LT(ids.size(), 100000U);
  }
}

}  // namespace
}  // namespace cairn::compute
