// Tokens that begin and end texts: never shown, never forged, never added twice, whatever kind the
// file gives them.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/test_vocabularies.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kHello = 259;
constexpr std::int32_t kBos = 265;
constexpr std::int32_t kEos = 266;
const std::vector<std::int32_t> kAllKinds = {0, 1, 2, 3, 4, 5};

std::string Streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.Append(id);
  return text + decoder.Finish();
}

TEST(MarkerTokensTest, AnEndOfAnyKindIsAControlToken) {
  for (const std::string name : {"<done>", "<|eot_id|>"}) {
    for (const std::int32_t kind : kAllKinds) {
      test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
      vocabulary.tokens[kEos] = name;
      vocabulary.kinds[kEos] = kind;
      const auto tokenizer = Load(vocabulary);
      EXPECT_EQ(Streamed(*tokenizer, {kHello, kEos, kHello}), "hellohello") << name << kind;
      EXPECT_EQ(tokenizer->Decode(Ids{kHello, kEos}), "hello") << name << kind;
      EXPECT_EQ(tokenizer->DecodePiece(kEos), "") << name << kind;
      EXPECT_EQ(tokenizer->DecodePiece(kEos, true), name) << kind;
      const Ids forged = tokenizer->Encode(name, kPlain);
      EXPECT_EQ(std::count(forged.begin(), forged.end(), kEos), 0) << name << kind;
      EXPECT_EQ(tokenizer->Decode(forged), name) << kind;
      EXPECT_EQ(tokenizer->Encode("hello" + name, kSpecial), (Ids{kBos, kHello, kEos})) << kind;
    }
  }
}

TEST(MarkerTokensTest, OtherEndsThanEosAreControlTokensToo) {
  for (const std::string key : {"eot", "eom"}) {
    const test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
    test::GgufWriter writer;
    test::AddVocabulary(vocabulary, writer);
    writer.AddU32("tokenizer.ggml." + key + "_token_id", 267);  // <tool>, user-defined
    const auto tokenizer = LoadTokenizer(writer);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(267)) << key;
    EXPECT_EQ(Streamed(**tokenizer, {kHello, 267}), "hello") << key;
  }
}

TEST(MarkerTokensTest, AnEndOfAnyKindIsAControlTokenForSentencePiece) {
  for (const std::int32_t kind : kAllKinds) {
    test::Vocabulary vocabulary = test::MakeSpmVocabulary(512);
    vocabulary.kinds[2] = kind;
    const auto tokenizer = Load(vocabulary);
    const Ids hello = tokenizer->Encode("hello", kPlain);
    Ids ended = hello;
    ended.push_back(2);
    EXPECT_EQ(tokenizer->Decode(ended), "hello") << kind;
    EXPECT_EQ(Streamed(*tokenizer, ended), " hello") << kind;
    ended.insert(ended.begin(), 1);
    EXPECT_EQ(tokenizer->Encode("hello</s>", kSpecial), ended) << kind;
  }
}

TEST(MarkerTokensTest, AnEndThatTextsAreFullOfStaysTextButIsNotShown) {
  test::Vocabulary bytes = HelloVocabulary("llama-bpe");
  bytes.eos_id = '.';
  test::Vocabulary pieces = test::MakeSpmVocabulary(512);
  pieces.eos_id = 3 + '\n';  // a byte token
  for (const auto& [vocabulary, end] : {std::pair(bytes, "."), std::pair(pieces, "\n")}) {
    const auto tokenizer = Load(vocabulary);
    const std::string text = std::string("hello") + end + "hello";
    const Ids ids = tokenizer->Encode(text, kPlain);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), vocabulary.eos_id), 1);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    EXPECT_EQ(Streamed(*tokenizer, {vocabulary.eos_id}), "");
  }
}

TEST(MarkerTokensTest, ATextThatBeginsWithTheBeginningOfTextGetsNoOther) {
  for (const std::int32_t kind : kAllKinds) {
    test::Vocabulary vocabulary = HelloVocabulary("llama-bpe");
    vocabulary.kinds[kBos] = kind;
    const auto tokenizer = Load(vocabulary);
    const std::string bos = "<|begin_of_text|>";
    EXPECT_EQ(tokenizer->Encode(bos + "hello", kSpecial), (Ids{kBos, kHello})) << kind;
    EXPECT_EQ(tokenizer->Encode(bos, kSpecial), Ids{kBos}) << kind;
    EXPECT_EQ(tokenizer->Encode("hello" + bos, kSpecial), (Ids{kBos, kHello, kBos})) << kind;
    EXPECT_EQ(tokenizer->Encode("hello", kSpecial), (Ids{kBos, kHello})) << kind;
    // As text it is what somebody writes about it.
    const Ids text = tokenizer->Encode(bos, {.add_special = true, .parse_special = false});
    EXPECT_EQ(std::count(text.begin(), text.end(), kBos), 1) << kind;
    EXPECT_EQ(text.front(), kBos) << kind;
    EXPECT_EQ(tokenizer->Decode(text), bos) << kind;
  }
  const auto pieces = Load(test::MakeSpmVocabulary(512));
  EXPECT_EQ(pieces->Encode("<s>hello", kSpecial), pieces->Encode("hello", kSpecial));
}

TEST(MarkerTokensTest, NoEndIsAddedBehindAText) {
  for (test::Vocabulary vocabulary : {HelloVocabulary("llama-bpe"), test::MakeSpmVocabulary(512)}) {
    const Ids expected = Load(vocabulary)->Encode("hello", kSpecial);
    vocabulary.add_eos = true;
    EXPECT_EQ(Load(vocabulary)->Encode("hello", kSpecial), expected);
  }
}

}  // namespace
}  // namespace cairn::compute
