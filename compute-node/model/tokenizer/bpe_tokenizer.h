// BpeTokenizer: byte-level byte-pair encoding, as GPT-2 introduced it and Llama 3 and Qwen 2 use
// it. The text is cut into pieces (pre_tokenizer.h); the bytes of a piece, each written as one
// printable character, are merged pair by pair in the order of the merge list. Encoding a piece of
// n bytes costs O(n log n).
//
// Errors:     besides those of Tokenizer, INVALID_ARGUMENT for a merge list that is missing, too
//             long, or holds an entry that is not "left right", and for a vocabulary that lacks a
//             byte and has no unknown token.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compute-node/model/tokenizer/pre_tokenizer.h"
#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::compute {

inline constexpr std::int64_t kMergeCountMax = 1 << 22;

class BpeTokenizer final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> FromGguf(const GgufFile& file);

  bool adds_bos_by_default() const { return pre_tokenizer_->adds_bos(); }

 private:
  // What two adjacent symbols become, and how early.
  struct Merge {
    std::int32_t rank;
    std::int32_t result;
  };

  BpeTokenizer(std::unique_ptr<Vocabulary> vocabulary,
               std::unique_ptr<const PreTokenizer> pre_tokenizer)
      : Tokenizer(std::move(vocabulary)), pre_tokenizer_(std::move(pre_tokenizer)) {}
  absl::Status IndexBytes();
  absl::Status ReadMerges(const GgufFile& file);

  void EncodeText(std::string_view text, bool starts_text, FoundTokens& found) const override;
  void AppendBytes(std::int32_t id, std::string& out) const override;
  // Of at most kMergedBytesMax.
  void EncodePiece(std::string_view piece, std::vector<std::int32_t>& ids) const;
  bool IsTextToken(std::int32_t id) const;
  bool EncodeWhole(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void AppendSymbol(std::int32_t symbol, std::string_view bytes,
                    std::vector<std::int32_t>& ids) const;

  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  // Symbols are token ids; from vocab_size() on, texts that merges make on the way but that are no
  // tokens.
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left symbol << 32 | right symbol
  std::array<std::int32_t, 256> byte_symbols_{};
};

}  // namespace cairn::compute
