#include "compute-node/model/tokenizer/spm_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <utility>

#include "common/base/utf8.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
constexpr std::int32_t kNoSymbol = -1;
// Text is cut behind so many where that changes no token; at the latest behind kMergedBytesMax,
// which no text of words needs.
constexpr std::size_t kMergedBytesWanted = 4 << 10;

// A stretch of the text, in a list linked by index.
struct Symbol {
  std::size_t begin;
  std::size_t size;  // 0: merged into its left neighbour
  std::int32_t previous;
  std::int32_t next;
};

struct Merge {
  float score;
  std::int32_t left;
  std::size_t size;  // of the two together: tells a merge that later ones have overtaken

  bool operator<(const Merge& other) const {  // the heap's top is the largest
    return score != other.score ? score < other.score : left > other.left;
  }
};

std::string EscapeSpaces(std::string_view text, bool prefix) {
  std::string out;
  if (prefix) {
    out += kSpace;
  }
  for (const char c : text) {
    if (c == ' ') {
      out += kSpace;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

// A character, or a byte of none, as one number.
std::uint32_t CharacterNumber(std::string_view character) {
  std::uint32_t number = 0;
  for (const char c : character) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

// Of the characters one after the other.
std::uint64_t NeighbourNumber(std::string_view left, std::string_view right) {
  return std::uint64_t{CharacterNumber(left)} << 32 | CharacterNumber(right);
}

std::string_view FirstCharacter(std::string_view text) {
  return text.substr(0, std::max<std::size_t>(1, Utf8CharacterBytes(text)));
}

std::vector<Symbol> SplitCharacters(std::string_view text) {
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t size = std::max<std::size_t>(1, Utf8CharacterBytes(text.substr(begin)));
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({begin, size, index - 1, index + 1});
    begin += size;
  }
  if (!symbols.empty()) {
    symbols.back().next = kNoSymbol;
  }
  return symbols;
}

// The byte that "<0xXX>" names.
std::optional<std::uint8_t> ParseByteToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  std::uint8_t value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'A' && c <= 'F')) {
      return std::nullopt;
    }
    value = static_cast<std::uint8_t>(value * 16 + (digit ? c - '0' : c - 'A' + 10));
  }
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpmTokenizer>> SpmTokenizer::FromGguf(const GgufFile& file) {
  std::unique_ptr<Vocabulary> vocabulary;
  CAIRN_ASSIGN_OR_RETURN(vocabulary, Vocabulary::FromGguf(file));
  if (!vocabulary->has_scores()) {
    return InvalidArgument(
        "read tokenizer: tokenizer.ggml.scores is missing, which a llama (SentencePiece) "
        "tokenizer needs");
  }
  // Without them the byte tokens would be ordinary text, and what no piece spells would be lost.
  if (!vocabulary->has_kinds()) {
    return InvalidArgument(
        "read tokenizer: tokenizer.ggml.token_type is missing, which a llama (SentencePiece) "
        "tokenizer needs");
  }
  std::unique_ptr<SpmTokenizer> tokenizer(new SpmTokenizer(std::move(vocabulary)));
  CAIRN_RETURN_IF_ERROR(tokenizer->IndexBytes());
  tokenizer->IndexNeighbours();
  CAIRN_ASSIGN_OR_RETURN(tokenizer->space_prefix_,
                         ReadFlag(file, "tokenizer.ggml.add_space_prefix", true));
  return tokenizer;
}

absl::Status SpmTokenizer::IndexBytes() {
  std::array<std::int32_t, 256> byte_ids{};
  byte_ids.fill(-1);
  for (std::int32_t id = 0; id < vocabulary().size(); ++id) {
    if (vocabulary().Kind(id) != TokenKind::kByte) {
      continue;
    }
    const std::optional<std::uint8_t> byte = ParseByteToken(vocabulary().Text(id));
    if (!byte.has_value()) {
      return InvalidArgument("read tokenizer: byte token {} is '{}', expected <0x00> to <0xFF>", id,
                             PrintableText(vocabulary().Text(id)));
    }
    byte_ids[*byte] = id;
  }
  return SetByteTokens(byte_ids);
}

std::int32_t SpmTokenizer::FindPiece(std::string_view text) const {
  const std::optional<std::int32_t> id = vocabulary().Find(text);
  if (!id.has_value()) {
    return kNoSymbol;
  }
  // Plain text never becomes a control token, not even by merging "</" and "s>".
  const TokenKind kind = vocabulary().Kind(*id);
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown || kind == TokenKind::kByte
             ? kNoSymbol
             : *id;
}

void SpmTokenizer::IndexNeighbours() {
  for (std::int32_t id = 0; id < vocabulary().size(); ++id) {
    std::string_view text = vocabulary().Text(id);
    if (FindPiece(text) == kNoSymbol) {
      continue;
    }
    for (std::string_view left = FirstCharacter(text); left.size() < text.size();) {
      text.remove_prefix(left.size());
      const std::string_view right = FirstCharacter(text);
      neighbours_.push_back(NeighbourNumber(left, right));
      left = right;
    }
  }
  std::sort(neighbours_.begin(), neighbours_.end());
  neighbours_.erase(std::unique(neighbours_.begin(), neighbours_.end()), neighbours_.end());
  neighbours_.shrink_to_fit();
}

void SpmTokenizer::EncodeText(std::string_view text, bool starts_text, FoundTokens& found) const {
  bool prefix = space_prefix_ && starts_text;
  while (!found.full()) {
    const std::size_t end = text.find(kSpace);
    EncodeParts(text.substr(0, end), prefix, found);
    if (end == std::string_view::npos) {
      return;
    }
    AppendByteTokens(kSpace, found.ids);
    text.remove_prefix(end + kSpace.size());
    prefix = false;
  }
}

void SpmTokenizer::EncodeParts(std::string_view text, bool prefix, FoundTokens& found) const {
  for (std::size_t bytes = FindCut(text); bytes < text.size() && !found.full();
       bytes = FindCut(text)) {
    EncodeEscaped(EscapeSpaces(text.substr(0, bytes), prefix), found.ids);
    text.remove_prefix(bytes);
    prefix = false;
  }
  if (!found.full()) {
    EncodeEscaped(EscapeSpaces(text, prefix), found.ids);
  }
}

std::size_t SpmTokenizer::FindCut(std::string_view text) const {
  if (text.size() <= kMergedBytesWanted) {
    return text.size();
  }
  const auto escaped = [](std::string_view character) {
    return character == " " ? kSpace : character;
  };
  std::size_t end = 0;
  while (end < std::min(text.size(), kMergedBytesMax)) {
    const std::string_view left = FirstCharacter(text.substr(end));
    end += left.size();
    if (end < kMergedBytesWanted || end == text.size()) {
      continue;
    }
    const std::string_view right = FirstCharacter(text.substr(end));
    if (!std::binary_search(neighbours_.begin(), neighbours_.end(),
                            NeighbourNumber(escaped(left), escaped(right)))) {
      break;
    }
  }
  return end;
}

void SpmTokenizer::EncodeEscaped(std::string_view whole, std::vector<std::int32_t>& ids) const {
  std::vector<Symbol> symbols = SplitCharacters(whole);
  const auto at = [&symbols](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };

  std::priority_queue<Merge> merges;
  const auto consider = [&](std::int32_t left) {
    if (left == kNoSymbol || at(left).next == kNoSymbol) {
      return;
    }
    const std::size_t size = at(left).size + at(at(left).next).size;
    const std::int32_t id = FindPiece(whole.substr(at(left).begin, size));
    if (id != kNoSymbol) {
      merges.push({vocabulary().Score(id), left, size});
    }
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) {
    consider(i);
  }
  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Symbol& left = at(merge.left);
    if (left.size == 0 || left.next == kNoSymbol || left.size + at(left.next).size != merge.size) {
      continue;
    }
    Symbol& right = at(left.next);
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next != kNoSymbol) {
      at(left.next).previous = merge.left;
    }
    consider(left.previous);
    consider(merge.left);
  }

  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) {
      continue;
    }
    const std::string_view piece = whole.substr(symbol.begin, symbol.size);
    if (const std::int32_t id = FindPiece(piece); id != kNoSymbol) {
      ids.push_back(id);
      continue;
    }
    AppendByteTokens(piece, ids);
  }
}

void SpmTokenizer::AppendBytes(std::int32_t id, std::string& out) const {
  std::string_view text = vocabulary().Text(id);
  if (vocabulary().Kind(id) == TokenKind::kByte) {
    out.push_back(static_cast<char>(ParseByteToken(text).value_or(0)));
    return;
  }
  while (!text.empty()) {
    if (text.starts_with(kSpace)) {
      out.push_back(' ');
      text.remove_prefix(kSpace.size());
    } else {
      out.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
}

}  // namespace cairn::compute
