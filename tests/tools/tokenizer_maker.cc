#include "tests/tools/tokenizer_maker.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace cairn::test {
namespace {

constexpr std::string_view kText =
    R"(A cairn is a heap of stones that shows the way. Walkers add a stone when they pass, and in
the fog the next walker finds the path again. The oldest cairns stand where the trees end; nobody
remembers who built them, but everybody trusts them.
On the first day the guide carried bread, two maps and 12 candles. On the second day she carried
water, 3 ropes and the lantern. "How far is the hut?" asked the boy. "As far as the light," she
answered, "and the light is 4096 steps away, or 8192, or 16384." It wasn't true, but they'd walked
on. I'm sure you'll find it, we've found it before, it's there.
def remember(stones, limit=64):
    heap = []
    for stone in stones:
        if stone.weight > limit and len(heap) < limit:
            heap.append(stone)
	return heap
int main(void) { for (int i = 0; i < 10; ++i) { total += weights[i] * keys[i]; } return 0; }
In the valley the river turned the mill, and the mill turned the stones, and the stones made flour;
the path, the river, the mill and the cairn were there before the people, and they're there still.
)"
    "Caf\u00e9, na\u00efve, \u00fcber, se\u00f1or: 5 \u20ac \u2192 6 \u20ac. \u65e5\u672c\u8a9e "
    "\u4e2d\u6587 \U0001f642\n";

using Symbols = std::vector<std::string>;
using WordCounts = std::map<Symbols, int64_t>;

std::string Utf8(uint32_t code_point) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (code_point < 0x80) {
    return {byte(code_point)};
  }
  if (code_point < 0x800) {
    return {byte(0xc0 | code_point >> 6), byte(0x80 | (code_point & 63))};
  }
  return {byte(0xe0 | code_point >> 12), byte(0x80 | (code_point >> 6 & 63)),
          byte(0x80 | (code_point & 63))};
}

// The character that stands for each byte in byte-level vocabularies: itself where it is printable,
// else 256 and up.
std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> alphabet;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte != 173);
    alphabet.push_back(Utf8(printable ? byte : next++));
  }
  return alphabet;
}

enum class CharClass { kSpace, kLetter, kDigit, kOther };

CharClass ClassOf(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == ' ' || c == '\n' || c == '\t') {
    return CharClass::kSpace;
  }
  if (c >= '0' && c <= '9') {
    return CharClass::kDigit;
  }
  const char lower = static_cast<char>(c | 0x20);
  return (lower >= 'a' && lower <= 'z') || byte >= 0x80 ? CharClass::kLetter : CharClass::kOther;
}

// Words with their leading space, single digits, runs of punctuation and of white space: close
// enough to what the pre-tokenizers make that merges learned here are used by them.
std::vector<std::string> SplitWords(std::string_view text) {
  std::vector<std::string> words;
  size_t i = 0;
  while (i < text.size()) {
    size_t j = i;
    if (text[j] == ' ' && j + 1 < text.size() && ClassOf(text[j + 1]) != CharClass::kSpace) {
      ++j;
    }
    const CharClass kind = ClassOf(text[j]);
    size_t end = j + 1;
    while (end < text.size() && kind != CharClass::kDigit && ClassOf(text[end]) == kind) {
      ++end;
    }
    if (kind == CharClass::kSpace && end < text.size() && end - i > 1 && text[end - 1] == ' ') {
      --end;  // the last space belongs to the word that follows
    }
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

Symbols SplitCharacters(std::string_view text) {
  Symbols out;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
    if (continues && !out.empty()) {
      out.back().push_back(c);
    } else {
      out.emplace_back(1, c);
    }
  }
  return out;
}

Symbols MergePair(const Symbols& word, const std::pair<std::string, std::string>& pair) {
  Symbols out;
  for (size_t i = 0; i < word.size(); ++i) {
    if (i + 1 < word.size() && word[i] == pair.first && word[i + 1] == pair.second) {
      out.push_back(word[i] + word[i + 1]);
      ++i;
    } else {
      out.push_back(word[i]);
    }
  }
  return out;
}

// The most frequent adjacent pairs, merged one after another; ties go to the pair that sorts first.
std::vector<std::pair<std::string, std::string>> LearnMerges(WordCounts words, size_t merge_count) {
  std::vector<std::pair<std::string, std::string>> merges;
  std::set<std::string> made;
  while (merges.size() < merge_count) {
    std::map<std::pair<std::string, std::string>, int64_t> pairs;
    for (const auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        pairs[{word[i], word[i + 1]}] += count;
      }
    }
    const std::pair<const std::pair<std::string, std::string>, int64_t>* best = nullptr;
    for (const auto& entry : pairs) {
      if ((best == nullptr || entry.second > best->second) &&
          !made.contains(entry.first.first + entry.first.second)) {
        best = &entry;
      }
    }
    if (best == nullptr) {
      break;
    }
    merges.push_back(best->first);
    made.insert(best->first.first + best->first.second);
    WordCounts merged;
    for (const auto& [word, count] : words) {
      merged[MergePair(word, best->first)] += count;
    }
    words = std::move(merged);
  }
  return merges;
}

// Special tokens of a family: all of them, and the positions of bos and eos among them.
struct Specials {
  std::vector<std::string> tokens;
  int32_t bos = 0;
  int32_t eos = 0;
  bool add_bos = false;
};

Specials SpecialsOf(std::string_view pre) {
  if (pre == "llama-bpe") {
    return {{"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eot_id|>"},
            0,
            1,
            true};
  }
  if (pre == "qwen2") {
    return {{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, 0, 2, false};
  }
  return {{"<|endoftext|>"}, 0, 0, false};
}

}  // namespace

std::string_view VocabularyText() { return kText; }

void PadVocabulary(Vocabulary& vocabulary, int32_t token_count) {
  const auto count = static_cast<size_t>(token_count);
  CAIRN_CHECK_LE(vocabulary.tokens.size(), count);
  for (size_t i = vocabulary.tokens.size(); i < count; ++i) {
    vocabulary.tokens.push_back(fmt::format("[UNUSED{}]", i));
    vocabulary.kinds.push_back(kUnusedToken);
    if (vocabulary.model == "llama") {
      vocabulary.scores.push_back(-1e6F);
    }
  }
}

Vocabulary MakeSpmVocabulary(int32_t token_count) {
  CAIRN_CHECK_GE(token_count, 384);
  Vocabulary out;
  out.model = "llama";
  out.pre = "default";
  out.bos_id = 1;
  out.eos_id = 2;
  out.add_bos = true;
  out.tokens = {"<unk>", "<s>", "</s>"};
  out.kinds = {kUnknownToken, kControlToken, kControlToken};
  for (int byte = 0; byte < 256; ++byte) {
    out.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    out.kinds.push_back(kByteToken);
  }
  out.scores.assign(out.tokens.size(), 0.0F);

  WordCounts words;
  std::set<std::string> characters;
  for (const std::string& word : SplitWords(kText)) {
    Symbols symbols;
    for (const std::string& character : SplitCharacters(word)) {
      if (character == "\n" || character == "\t") {
        continue;  // left to the byte tokens
      }
      symbols.push_back(character == " " ? "\u2581" : character);
      characters.insert(symbols.back());
    }
    ++words[symbols];
  }
  const size_t piece_room = static_cast<size_t>(token_count) - out.tokens.size();
  CAIRN_CHECK_LE(characters.size(), piece_room);
  std::vector<std::string> pieces;
  for (const auto& [left, right] : LearnMerges(words, piece_room - characters.size())) {
    pieces.push_back(left + right);
  }
  pieces.insert(pieces.end(), characters.begin(), characters.end());
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    out.tokens.push_back(pieces[rank]);
    out.kinds.push_back(kNormalToken);
    out.scores.push_back(-static_cast<float>(rank));
  }
  PadVocabulary(out, token_count);
  return out;
}

Vocabulary MakeBpeVocabulary(int32_t token_count, std::string_view pre) {
  CAIRN_CHECK_GE(token_count, 300);
  const Specials specials = SpecialsOf(pre);
  Vocabulary out;
  out.model = "gpt2";
  out.pre = pre;
  out.add_bos = specials.add_bos;
  const std::vector<std::string> alphabet = ByteAlphabet();
  out.tokens = alphabet;

  WordCounts words;
  for (const std::string& word : SplitWords(kText)) {
    Symbols symbols;
    for (const char c : word) {
      symbols.push_back(alphabet[static_cast<unsigned char>(c)]);
    }
    ++words[symbols];
  }
  const auto special_count = static_cast<int32_t>(specials.tokens.size());
  const size_t merge_room = static_cast<size_t>(token_count - special_count) - out.tokens.size();
  for (const auto& [left, right] : LearnMerges(words, merge_room)) {
    out.merges.push_back(fmt::format("{} {}", left, right));
    out.tokens.push_back(left + right);
  }
  out.kinds.assign(out.tokens.size(), kNormalToken);
  const int32_t first_special = token_count - special_count;
  PadVocabulary(out, first_special);
  for (const std::string& token : specials.tokens) {
    out.tokens.push_back(token);
    out.kinds.push_back(kControlToken);
  }
  out.bos_id = first_special + specials.bos;
  out.eos_id = first_special + specials.eos;
  return out;
}

void AddVocabulary(const Vocabulary& vocabulary, GgufWriter& writer) {
  writer.AddString("tokenizer.ggml.model", vocabulary.model);
  writer.AddString("tokenizer.ggml.pre", vocabulary.pre);
  writer.AddStringArray("tokenizer.ggml.tokens", vocabulary.tokens);
  if (!vocabulary.scores.empty()) {
    writer.AddF32Array("tokenizer.ggml.scores", vocabulary.scores);
  }
  writer.AddI32Array("tokenizer.ggml.token_type", vocabulary.kinds);
  if (vocabulary.model == "gpt2") {
    writer.AddStringArray("tokenizer.ggml.merges", vocabulary.merges);
  }
  if (vocabulary.bos_id >= 0) {
    writer.AddU32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(vocabulary.bos_id));
  }
  if (vocabulary.eos_id >= 0) {
    writer.AddU32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(vocabulary.eos_id));
  }
  if (vocabulary.model == "llama") {
    writer.AddU32("tokenizer.ggml.unknown_token_id", 0);
  }
  writer.AddBool("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  writer.AddBool("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
}

}  // namespace cairn::test
