#include "compute-node/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <absl/strings/ascii.h>

#include "common/base/utf8.h"
#include "compute-node/model/tokenizer/bpe_tokenizer.h"
#include "compute-node/model/tokenizer/spm_tokenizer.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// Calls on_text for each stretch of text and on_special for each special token, in order.
template <typename OnText, typename OnSpecial>
void ForEachPart(const Vocabulary& vocabulary, std::string_view text, bool control,
                 const OnText& on_text, const OnSpecial& on_special) {
  std::size_t begin = 0;  // of the text not yet told
  const auto tell_until = [&](std::size_t end) {
    if (end > begin) {
      on_text(text.substr(begin, end - begin));
    }
  };
  std::size_t position = vocabulary.HasSpecial(control) ? 0 : text.size();
  while (position < text.size()) {
    const std::optional<std::int32_t> special =
        vocabulary.SpecialAt(text.substr(position), control);
    if (!special.has_value()) {
      ++position;
      continue;
    }
    tell_until(position);
    on_special(*special);
    position += vocabulary.Text(*special).size();
    begin = position;
  }
  tell_until(text.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  const std::optional<std::string_view> model = file.FindString("tokenizer.ggml.model");
  if (!model.has_value()) {
    return InvalidArgument(
        "read tokenizer: the file has no text under tokenizer.ggml.model; use a GGUF file that was "
        "converted with its tokenizer");
  }
  std::unique_ptr<Tokenizer> tokenizer;
  bool adds_bos_default = false;
  if (*model == "gpt2") {
    std::unique_ptr<BpeTokenizer> bpe;
    CAIRN_ASSIGN_OR_RETURN(bpe, BpeTokenizer::FromGguf(file));
    adds_bos_default = bpe->adds_bos_by_default();
    tokenizer = std::move(bpe);
  } else if (*model == "llama") {
    CAIRN_ASSIGN_OR_RETURN(tokenizer, SpmTokenizer::FromGguf(file));
    adds_bos_default = true;
  } else {
    return Unimplemented(
        "read tokenizer: model '{}' is not supported; supported are gpt2 (byte-level BPE) and "
        "llama (SentencePiece)",
        PrintableText(*model));
  }
  CAIRN_ASSIGN_OR_RETURN(const bool adds_bos,
                         ReadFlag(file, "tokenizer.ggml.add_bos_token", adds_bos_default));
  tokenizer->adds_bos_ = adds_bos && tokenizer->bos_id() >= 0;
  tokenizer->MakeMarkersControl();
  return tokenizer;
}

absl::StatusOr<bool> Tokenizer::ReadFlag(const GgufFile& file, std::string_view key,
                                         bool fallback) {
  if (!file.Has(key)) {
    return fallback;
  }
  const std::optional<bool> value = file.FindBool(key);
  if (!value.has_value()) {
    return InvalidArgument("read tokenizer: {} is not a bool", key);
  }
  return *value;
}

absl::Status Tokenizer::SetByteTokens(const std::array<std::int32_t, 256>& ids) {
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    byte_ids_[byte] = ids[byte] >= 0 ? ids[byte] : vocabulary_->unknown_id();
    if (byte_ids_[byte] < 0) {
      return InvalidArgument(
          "read tokenizer: no token for byte {:#04x} and no unknown token to stand for it", byte);
    }
  }
  return absl::OkStatus();
}

void Tokenizer::AppendByteTokens(std::string_view bytes, std::vector<std::int32_t>& ids) const {
  for (const char c : bytes) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  }
}

void Tokenizer::MakeMarkersControl() {
  std::vector<std::int32_t> markers = vocabulary_->end_ids();
  if (bos_id() >= 0) markers.push_back(bos_id());
  std::erase_if(markers, [this](std::int32_t id) { return !IsMarkup(id); });
  vocabulary_->MakeControl(markers);
}

bool Tokenizer::IsMarkup(std::int32_t id) const {
  switch (vocabulary_->Kind(id)) {
    case TokenKind::kByte:
      return false;
    case TokenKind::kNormal: {
      // Somebody may have chosen a line end or a full stop as the end, which texts are full of.
      const std::string text = DecodePiece(id);
      return text.size() > 1 && std::any_of(text.begin(), text.end(), [](char c) {
               return absl::ascii_isalnum(static_cast<unsigned char>(c));
             });
    }
    default:
      return true;
  }
}

std::vector<std::int32_t> Tokenizer::Encode(std::string_view text,
                                            const EncodeOptions& options) const {
  FoundTokens found{{}, options.tokens_max};
  bool starts_text = true;
  ForEachPart(
      *vocabulary_, text, options.parse_special,
      [&](std::string_view part) {
        EncodeText(part, starts_text, found);
        starts_text = false;
      },
      [&](std::int32_t special) {
        if (!found.full()) found.ids.push_back(special);
        starts_text = true;
      });
  std::vector<std::int32_t>& ids = found.ids;
  // Whoever wrote a prompt by a model's template wrote it already.
  if (options.add_special && adds_bos_ && (ids.empty() || ids.front() != bos_id())) {
    ids.insert(ids.begin(), bos_id());
  }
  return std::move(ids);
}

std::vector<std::int32_t> Tokenizer::FindMarkup(std::span<const PromptPiece> pieces) const {
  std::vector<std::int32_t> found;
  for (const PromptPiece& piece : pieces) {
    if (piece.kind != PromptPiece::Kind::kMarkup) continue;
    ForEachPart(
        *vocabulary_, piece.text, /*control=*/true, [](std::string_view) {},
        [&found](std::int32_t id) { found.push_back(id); });
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<std::int32_t> Tokenizer::EncodePieces(std::span<const PromptPiece> pieces,
                                                  std::int64_t tokens_max) const {
  FoundTokens found{{}, tokens_max};
  std::string stretch;
  const std::vector<std::int32_t> markup = FindMarkup(pieces);
  const auto add_special = [&](std::int32_t id) {
    if (!stretch.empty()) {
      EncodeText(stretch, !stretch.starts_with(' '), found);
      stretch.clear();
    }
    if (id >= 0 && !found.full()) {
      found.ids.push_back(id);
    }
  };
  const auto add_text = [&stretch](std::string_view part) { stretch += part; };
  // Files exist in which what begins a turn is a user-defined token, which text may contain.
  const auto add_user_defined = [&](std::int32_t id) {
    if (std::binary_search(markup.begin(), markup.end(), id)) {
      add_text(vocabulary_->Text(id));
    } else {
      add_special(id);
    }
  };
  for (const PromptPiece& piece : pieces) {
    switch (piece.kind) {
      case PromptPiece::Kind::kText:
        ForEachPart(*vocabulary_, piece.text, /*control=*/false, add_text, add_user_defined);
        break;
      case PromptPiece::Kind::kMarkup:
        ForEachPart(*vocabulary_, piece.text, /*control=*/true, add_text, add_special);
        break;
      case PromptPiece::Kind::kBos:
        add_special(bos_id());
        break;
      case PromptPiece::Kind::kEos:
        add_special(eos_id());
        break;
    }
  }
  add_special(-1);
  return std::move(found.ids);
}

std::string Tokenizer::DecodePiece(std::int32_t id, bool render_special) const {
  std::string out;
  if (!vocabulary_->Contains(id)) {
    return out;
  }
  switch (vocabulary_->Kind(id)) {
    case TokenKind::kControl:
      if (render_special) {
        out = vocabulary_->Text(id);
      }
      break;
    case TokenKind::kUnknown:
      out = render_special ? vocabulary_->Text(id) : kReplacementCharacter;
      break;
    case TokenKind::kUserDefined:
      out = vocabulary_->Text(id);
      break;
    case TokenKind::kNormal:
    case TokenKind::kUnused:
    case TokenKind::kByte:
      AppendBytes(id, out);
      break;
  }
  return out;
}

std::string Tokenizer::MarkerName(std::int32_t id) const {
  const bool is_marker = vocabulary_->Contains(id) &&
                         (vocabulary_->Kind(id) == TokenKind::kControl ||
                          vocabulary_->Kind(id) == TokenKind::kUnknown || IsEndOfGeneration(id));
  return is_marker ? DecodePiece(id, /*render_special=*/true) : "";
}

std::string Tokenizer::Decode(std::span<const std::int32_t> ids, bool render_special) const {
  std::string out;
  bool at_start = true;
  for (const std::int32_t id : ids) {
    const std::string piece = DecodePiece(id, render_special);
    const TokenKind kind = vocabulary_->Contains(id) ? vocabulary_->Kind(id) : TokenKind::kUnused;
    if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) {
      out += piece;
      at_start = true;
      continue;
    }
    const bool strip = at_start && puts_space_in_front() && piece.starts_with(' ');
    out.append(piece, strip ? 1 : 0);
    at_start = false;
  }
  return out;
}

std::string StreamingDecoder::Append(std::int32_t id) {
  if (!tokenizer_.IsEndOfGeneration(id)) pending_ += tokenizer_.DecodePiece(id);
  return TakeWholeCharacters(false);
}

std::string StreamingDecoder::Finish() { return TakeWholeCharacters(true); }

std::string StreamingDecoder::TakeWholeCharacters(bool at_end) {
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    std::size_t bytes = Utf8CharacterBytes(rest);
    if (bytes > 0) {
      out += rest.substr(0, bytes);
    } else if (!at_end && IsUtf8Prefix(rest)) {
      break;
    } else {
      bytes = 1;
      out += kReplacementCharacter;
    }
    rest.remove_prefix(bytes);
  }
  pending_ = std::string(rest);
  return out;
}

}  // namespace cairn::compute
