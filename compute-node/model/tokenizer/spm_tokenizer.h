// SpmTokenizer: SentencePiece's BPE with scores, as Llama 2 and Mistral use it. Of all adjacent
// pairs whose concatenation is a token, the one with the highest score is merged first, the
// leftmost among equals. A space is U+2581; one is put in front of a text
// (tokenizer.ggml.add_space_prefix). What no token covers becomes byte tokens <0xXX>. So does a
// U+2581 of the text, where SentencePiece itself would take it for a space and lose it. Encoding n
// bytes costs O(n log n).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::compute {

class SpmTokenizer final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<SpmTokenizer>> FromGguf(const GgufFile& file);

 private:
  explicit SpmTokenizer(std::unique_ptr<Vocabulary> vocabulary)
      : Tokenizer(std::move(vocabulary)) {}
  absl::Status IndexBytes();

  // Finds which characters follow each other in tokens.
  void IndexNeighbours();

  void EncodeText(std::string_view text, bool starts_text, FoundTokens& found) const override;
  // Of text without a U+2581; `prefix`: with a space in front.
  void EncodeParts(std::string_view text, bool prefix, FoundTokens& found) const;
  // Where the text can be cut in two, each encoded for itself, with the same tokens.
  std::size_t FindCut(std::string_view text) const;
  void EncodeEscaped(std::string_view whole, std::vector<std::int32_t>& ids) const;
  void AppendBytes(std::int32_t id, std::string& out) const override;
  bool puts_space_in_front() const override { return space_prefix_; }

  // The token with this text that merging may make; -1 if there is none.
  std::int32_t FindPiece(std::string_view text) const;

  bool space_prefix_ = true;
  // Sorted. What is no pair of these is never in one token: between them nothing is merged.
  std::vector<std::uint64_t> neighbours_;
};

}  // namespace cairn::compute
