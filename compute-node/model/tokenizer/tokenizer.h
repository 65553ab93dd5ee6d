// Tokenizer: text to token ids and back, as the tokenizer.ggml.* keys of a GGUF file describe it.
// Two families: byte-level BPE ("gpt2") and SentencePiece BPE with scores ("llama").
//
// Decode(Encode(text)) == text for all bytes, if nothing special is parsed. So nothing is
// normalised, and there is no "clean-up of spaces", which other engines do when they detokenise
// some vocabularies (" ," becomes ",").
//
// Units:      token ids as the model uses them, 0 to vocab_size() - 1.
// Threading:  immutable; safe from any thread. StreamingDecoder: one thread.
// Ownership:  keeps nothing of the GgufFile.
// Errors:     loading answers INVALID_ARGUMENT for a malformed vocabulary, UNIMPLEMENTED for a
//             tokenizer model or a pre-tokenizer that Cairn does not know. Encoding and decoding
//             cannot fail: any bytes can be encoded, UTF-8 or not, and an id that the vocabulary
//             lacks decodes to nothing.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/gguf/gguf.h"
#include "compute-node/model/tokenizer/vocabulary.h"

namespace cairn::compute {

inline constexpr std::int64_t kTokensUnlimited = std::numeric_limits<std::int64_t>::max();
// What is merged at once takes some tens of bytes for each of its own. Longer text without a space
// or another end of a word is cut; there it is other tokens, and the same text.
inline constexpr std::size_t kMergedBytesMax = 64 << 10;

// A prompt in pieces, so that what a template writes and what a user wrote stay apart: special
// tokens are looked for in markup only.
struct PromptPiece {
  enum class Kind {
    kText,    // from outside: "<|im_end|>" in it is text
    kMarkup,  // from a template: the names of special tokens in it are those tokens
    kBos,     // the vocabulary's beginning-of-text token, if it has one
    kEos,     // its end-of-text token, if it has one
  };

  Kind kind = Kind::kText;
  std::string text = {};  // empty for kBos and kEos
};

struct EncodeOptions {
  // Begin with the beginning-of-text token if the model expects it and the text does not begin with
  // it already. No end-of-text token is ever added: a prompt is to be gone on with.
  bool add_special = true;
  // Take the text of control tokens ("<|eot_id|>") as the tokens that they name. Leave it off for
  // text from outside, which could otherwise forge the structure of a conversation. User-defined
  // tokens ("<tool_call>"), which are text, are always taken.
  bool parse_special = false;
  // Encoding ends when there are more tokens than so many, which is then known by their number.
  std::int64_t tokens_max = kTokensUnlimited;
};

// Tokens as they are found.
struct FoundTokens {
  bool full() const { return std::ssize(ids) > tokens_max; }

  std::vector<std::int32_t> ids;
  const std::int64_t tokens_max;
};

class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<std::int32_t> Encode(std::string_view text, const EncodeOptions& options) const;

  // All pieces in a row, with nothing added. Tokens are merged across pieces, but special tokens
  // are found within one only; in text pieces only user-defined ones, and of them none that is in
  // the markup. No space is put in front of a stretch that begins with one: templates spell theirs
  // out. `tokens_max` as in EncodeOptions.
  std::vector<std::int32_t> EncodePieces(std::span<const PromptPiece> pieces,
                                         std::int64_t tokens_max = kTokensUnlimited) const;

  // The bytes of one token. Control tokens are empty unless `render_special`. A character may be
  // spread over several tokens.
  std::string DecodePiece(std::int32_t id, bool render_special = false) const;

  // The name of a token that is not shown by it: of a control or unknown token, or of one that ends
  // a text. Empty for tokens that are text.
  std::string MarkerName(std::int32_t id) const;

  // The bytes of a whole text: the space that Encode put in front, or behind a special token, is
  // taken off.
  std::string Decode(std::span<const std::int32_t> ids, bool render_special = false) const;

  // True for every token after which a model has nothing more to say.
  bool IsEndOfGeneration(std::int32_t id) const { return vocabulary_->IsEndOfGeneration(id); }

  std::int32_t vocab_size() const { return vocabulary_->size(); }
  std::int32_t bos_id() const { return vocabulary_->bos_id(); }  // -1: none
  std::int32_t eos_id() const { return vocabulary_->eos_id(); }  // -1: none
  bool adds_bos() const { return adds_bos_; }

 protected:
  explicit Tokenizer(std::unique_ptr<Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // Encodes text without special tokens. `starts_text`: nothing or a special token comes before it.
  // Takes memory beside the tokens for a part of the text at a time only, however long that is.
  virtual void EncodeText(std::string_view text, bool starts_text, FoundTokens& found) const = 0;
  // Appends the bytes of a token that is neither control nor unknown.
  virtual void AppendBytes(std::int32_t id, std::string& out) const = 0;
  virtual bool puts_space_in_front() const { return false; }

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // `fallback` when the key is absent.
  static absl::StatusOr<bool> ReadFlag(const GgufFile& file, std::string_view key, bool fallback);
  // What text becomes that no other token covers: the token of each byte, -1 where the unknown
  // token stands for it. INVALID_ARGUMENT if there is none.
  absl::Status SetByteTokens(const std::array<std::int32_t, 256>& ids);
  void AppendByteTokens(std::string_view bytes, std::vector<std::int32_t>& ids) const;

 private:
  // Makes control tokens of the tokens that begin or end a text, whatever kind the file gives them:
  // many give them that of text, and then they would be shown, and could be forged. Those that
  // are text indeed, as a line end, stay what they are.
  void MakeMarkersControl();
  bool IsMarkup(std::int32_t id) const;
  // The special tokens in the pieces' markup, sorted.
  std::vector<std::int32_t> FindMarkup(std::span<const PromptPiece> pieces) const;

  std::unique_ptr<Vocabulary> vocabulary_;  // constant once the tokenizer is made
  bool adds_bos_ = false;
  std::array<std::int32_t, 256> byte_ids_{};
};

// Turns a stream of tokens into a stream of text that can be shown or put in a message at any
// moment: only whole UTF-8 characters come out; bytes that can never become one come out as U+FFFD.
// Control tokens and tokens that end a text are not shown.
class StreamingDecoder {
 public:
  // Borrows `tokenizer`, which outlives it.
  explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The text that `id` completes; may be empty.
  std::string Append(std::int32_t id);
  // What is left at the end.
  std::string Finish();

 private:
  std::string TakeWholeCharacters(bool at_end);

  const Tokenizer& tokenizer_;
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace cairn::compute
