// Builds small vocabularies from a fixed text, so that tests have tokenizers of every kind without
// any outside file: SentencePiece-like (scores, byte tokens, U+2581 for the space) and byte-level
// BPE (GPT-2's byte alphabet, merges).
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tools/gguf_writer.h"

namespace cairn::test {

// The token_type numbers of the format.
enum TokenKind : int32_t {
  kNormalToken = 1,
  kUnknownToken = 2,
  kControlToken = 3,
  kUserToken = 4,
  kUnusedToken = 5,
  kByteToken = 6,
};

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
  std::vector<float> scores;        // SPM only
  std::vector<std::string> merges;  // BPE only, "left right"
  std::string model;                // "llama" or "gpt2"
  std::string pre;
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  bool add_bos = false;
  bool add_eos = false;
};

// Exactly `token_count` tokens (>= 384): <unk> <s> </s>, 256 byte tokens, then characters and
// merged pieces; what is left is filled with unused tokens.
Vocabulary MakeSpmVocabulary(int32_t token_count);

// Exactly `token_count` tokens (>= 300): the byte alphabet, merged pieces, unused filling, then the
// special tokens of the family that `pre` names ("llama-bpe", "qwen2", "gpt-2", "default").
Vocabulary MakeBpeVocabulary(int32_t token_count, std::string_view pre);

// Appends unused tokens up to `token_count`.
void PadVocabulary(Vocabulary& vocabulary, int32_t token_count);

// The tokenizer.ggml.* keys.
void AddVocabulary(const Vocabulary& vocabulary, GgufWriter& writer);

// The text that the vocabularies are built from: prose, code, numbers and a few characters beyond
// ASCII.
std::string_view VocabularyText();

}  // namespace cairn::test
