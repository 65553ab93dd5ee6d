#include "compute-node/model/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <queue>
#include <utility>

#include "common/base/utf8.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kNone = -1;
constexpr std::uint32_t kFirstStandIn =
    256;  // characters that stand for unprintable bytes start here

// GPT-2's alphabet: a printable Latin-1 byte is written as itself, the others as U+0100 and up in
// byte order.
bool WrittenAsItself(std::uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct ByteAlphabet {
  std::array<std::string, 256> characters;
  std::unordered_map<std::uint32_t, std::uint8_t> bytes;  // by code point

  ByteAlphabet() {
    std::uint32_t next = kFirstStandIn;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t code_point = WrittenAsItself(byte) ? byte : next++;
      AppendUtf8(code_point, characters[byte]);
      bytes[code_point] = static_cast<std::uint8_t>(byte);
    }
  }
};

const ByteAlphabet& Alphabet() {
  static const auto* alphabet = new ByteAlphabet;
  return *alphabet;
}

std::uint64_t PairKey(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// Numbers for the texts that occur in merges: token ids, and new ones for texts that are no tokens.
class SymbolTable {
 public:
  explicit SymbolTable(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), next_(vocabulary.size()) {}

  std::int32_t Intern(std::string_view text) {
    if (const auto id = vocabulary_.Find(text); id.has_value()) {
      return *id;
    }
    if (const auto it = extra_.find(text); it != extra_.end()) {
      return it->second;
    }
    texts_.emplace_back(text);
    extra_.emplace(texts_.back(), next_);
    return next_++;
  }

 private:
  const Vocabulary& vocabulary_;
  std::int32_t next_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::int32_t> extra_;
};

// One symbol of a piece, in a list linked by index.
struct Node {
  std::int32_t symbol;
  std::uint32_t begin;
  std::uint32_t size;  // 0: merged into its left neighbour
  std::int32_t previous;
  std::int32_t next;
};

struct Candidate {
  std::int32_t rank;
  std::int32_t left;
  std::int32_t
      left_symbol;  // with right_symbol: tells a candidate that other merges have overtaken
  std::int32_t right_symbol;
  std::int32_t result;

  bool operator<(
      const Candidate& other) const {  // the heap's top is the largest: lowest rank, leftmost
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::FromGguf(const GgufFile& file) {
  constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
  const std::optional<std::string_view> pre = file.FindString(kPreKey);
  if (!pre.has_value() && file.Has(kPreKey)) {
    return InvalidArgument("read tokenizer: {} is not a string", kPreKey);
  }
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
  CAIRN_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::Create(pre.value_or("default")));
  std::unique_ptr<Vocabulary> vocabulary;
  CAIRN_ASSIGN_OR_RETURN(vocabulary, Vocabulary::FromGguf(file));
  std::unique_ptr<BpeTokenizer> tokenizer(
      new BpeTokenizer(std::move(vocabulary), std::move(pre_tokenizer)));
  CAIRN_RETURN_IF_ERROR(tokenizer->IndexBytes());
  CAIRN_RETURN_IF_ERROR(tokenizer->ReadMerges(file));
  return tokenizer;
}

absl::Status BpeTokenizer::IndexBytes() {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = vocabulary().Find(Alphabet().characters[byte]).value_or(kNone);
  }
  return SetByteTokens(byte_symbols_);
}

absl::Status BpeTokenizer::ReadMerges(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.merges";
  const std::int64_t count = file.FindArrayCount(kKey).value_or(-1);
  if (file.FindArrayElementType(kKey) != GgufValueType::kString || count > kMergeCountMax) {
    return InvalidArgument("read tokenizer: {} must be an array of at most {} strings; {}", kKey,
                           kMergeCountMax,
                           count < 0 ? "it is missing" : fmt::format("it has {}", count));
  }
  const std::vector<std::string_view> lines =
      file.FindStringArray(kKey).value_or(std::vector<std::string_view>());
  SymbolTable symbols(vocabulary());
  merges_.reserve(lines.size());
  std::string joined;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const std::size_t space = line.find(' ');
    if (line.size() > static_cast<std::size_t>(kTokenTextBytesMax) || space == 0 ||
        space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      return InvalidArgument("read tokenizer: merge {} is '{}', expected two texts with one space",
                             rank, PrintableText(line));
    }
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    joined.assign(left);
    joined += right;
    // The first of two equal entries counts.
    merges_.try_emplace(PairKey(symbols.Intern(left), symbols.Intern(right)),
                        Merge{static_cast<std::int32_t>(rank), symbols.Intern(joined)});
  }
  return absl::OkStatus();
}

void BpeTokenizer::EncodeText(std::string_view text, bool /*starts_text*/,
                              FoundTokens& found) const {
  pre_tokenizer_->ForEachPiece(text, [&](std::string_view piece) {
    if (pre_tokenizer_->ignores_merges() && EncodeWhole(piece, found.ids)) return !found.full();
    while (!piece.empty() && !found.full()) {
      const std::size_t bytes = Utf8WholeBytes(piece, kMergedBytesMax);
      EncodePiece(piece.substr(0, bytes), found.ids);
      piece.remove_prefix(bytes);
    }
    return !found.full();
  });
}

// Plain text never becomes a control token, not even by merging "</" and "s>": it would be lost.
bool BpeTokenizer::IsTextToken(std::int32_t id) const {
  const TokenKind kind = vocabulary().Kind(id);
  return kind != TokenKind::kControl && kind != TokenKind::kUnknown;
}

bool BpeTokenizer::EncodeWhole(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (std::ssize(piece) > kTokenTextBytesMax) {
    return false;
  }
  std::string written;
  for (const char c : piece) {
    written += Alphabet().characters[static_cast<unsigned char>(c)];
  }
  const std::optional<std::int32_t> id = vocabulary().Find(written);
  if (!id.has_value() || !IsTextToken(*id)) {
    return false;
  }
  ids.push_back(*id);
  return true;
}

void BpeTokenizer::EncodePiece(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::vector<Node> nodes(piece.size());
  const auto at = [&nodes](std::int32_t i) -> Node& { return nodes[static_cast<std::size_t>(i)]; };
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    nodes[i] = {byte_symbols_[static_cast<unsigned char>(piece[i])], static_cast<std::uint32_t>(i),
                1, index - 1, i + 1 < piece.size() ? index + 1 : kNone};
  }
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](std::int32_t left) {
    if (left == kNone || at(left).next == kNone) {
      return;
    }
    const std::int32_t left_symbol = at(left).symbol;
    const std::int32_t right_symbol = at(at(left).next).symbol;
    const auto it = merges_.find(PairKey(left_symbol, right_symbol));
    if (it != merges_.end()) {
      candidates.push({it->second.rank, left, left_symbol, right_symbol, it->second.result});
    }
  };
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
    consider(static_cast<std::int32_t>(i));
  }
  while (!candidates.empty()) {
    const Candidate top = candidates.top();
    candidates.pop();
    Node& left = at(top.left);
    if (left.size == 0 || left.next == kNone || left.symbol != top.left_symbol ||
        at(left.next).symbol != top.right_symbol) {
      continue;
    }
    Node& right = at(left.next);
    left.symbol = top.result;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next != kNone) {
      at(left.next).previous = top.left;
    }
    consider(left.previous);
    consider(top.left);
  }
  for (const Node& node : nodes) {
    if (node.size > 0) {
      AppendSymbol(node.symbol, piece.substr(node.begin, node.size), ids);
    }
  }
}

void BpeTokenizer::AppendSymbol(std::int32_t symbol, std::string_view bytes,
                                std::vector<std::int32_t>& ids) const {
  if (vocabulary().Contains(symbol) && IsTextToken(symbol)) {
    ids.push_back(symbol);
    return;
  }
  AppendByteTokens(bytes, ids);
}

void BpeTokenizer::AppendBytes(std::int32_t id, std::string& out) const {
  std::string_view text = vocabulary().Text(id);
  while (!text.empty()) {
    const std::size_t bytes = std::max<std::size_t>(1, Utf8CharacterBytes(text));
    const std::string_view character = text.substr(0, bytes);
    const auto it = Alphabet().bytes.find(Utf8CodePoint(character));
    if (it != Alphabet().bytes.end()) {
      out.push_back(static_cast<char>(it->second));
    } else {
      out += character;  // tokens that were added later are written plainly
    }
    text.remove_prefix(bytes);
  }
}

}  // namespace cairn::compute
