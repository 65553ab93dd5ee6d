#include "compute-node/model/tokenizer/pre_tokenizer.h"

#include <cstdint>
#include <limits>
#include <string>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "compute-node/model/gguf/gguf.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace cairn::compute {
namespace {

// White space is spelled out because PCRE2's \s takes U+180E too, which Unicode has moved out of
// White_Space.
#define CAIRN_SPACE "\\p{Z}\\x{9}-\\x{d}\\x{85}"
// The English contractions; \x27 is the apostrophe. ASCII only, as the engines that trained
// vocabularies are used with do it.
#define CAIRN_CONTRACTIONS "\\x27(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
#define CAIRN_LLAMA3_LIKE(numbers) \
  CAIRN_CONTRACTIONS               \
  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+" \
  "|" numbers "| ?[^" CAIRN_SPACE  \
  "\\p{L}\\p{N}]+[\\r\\n]*"        \
  "|[" CAIRN_SPACE                 \
  "]*[\\r\\n]+"                    \
  "|[" CAIRN_SPACE "]+(?![^" CAIRN_SPACE "])|[" CAIRN_SPACE "]+"

#define CAIRN_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define CAIRN_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

constexpr const char* kLlama3 = CAIRN_LLAMA3_LIKE("\\p{N}{1,3}");
constexpr const char* kQwen2 = CAIRN_LLAMA3_LIKE("\\p{N}");
constexpr const char* kGpt2 = "\\x27(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" CAIRN_SPACE
                              "\\p{L}\\p{N}]+"
                              "|[" CAIRN_SPACE "]+(?![^" CAIRN_SPACE "])|[" CAIRN_SPACE "]+";

// Mistral's Tekken tells capitals from small letters, so that "helloWorld" is two words; letters
// without case and marks count as both.
constexpr const char* kTekken = "[^\\r\\n\\p{L}\\p{N}]?" CAIRN_UPPER "*" CAIRN_LOWER
                                "+"
                                "|[^\\r\\n\\p{L}\\p{N}]?" CAIRN_UPPER "+" CAIRN_LOWER
                                "*"
                                "|\\p{N}| ?[^" CAIRN_SPACE
                                "\\p{L}\\p{N}]+[\\r\\n/]*"
                                "|[" CAIRN_SPACE
                                "]*[\\r\\n]+"
                                "|[" CAIRN_SPACE "]+(?![^" CAIRN_SPACE "])|[" CAIRN_SPACE "]+";

#undef CAIRN_UPPER
#undef CAIRN_LOWER
#undef CAIRN_LLAMA3_LIKE
#undef CAIRN_CONTRACTIONS
#undef CAIRN_SPACE

constexpr const char* kPunctuation = "[\\p{P}$+<=>^~|]+";
constexpr const char* kNumbers = "\\p{N}+";
constexpr const char* kOneNumber = "\\p{N}";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";

struct Family {
  std::vector<std::string_view> names;
  std::vector<const char*> patterns;
  bool ignores_merges;
  bool adds_bos;
};

const std::vector<Family>& Families() {
  static const auto* families = new std::vector<Family>{
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}, {kLlama3}, true, true},
      {{"smaug-bpe"}, {kLlama3}, false, false},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {kQwen2}, false, false},
      {{"tekken"}, {kTekken}, true, true},
      {{"gpt-2"}, {kGpt2}, false, false},
      {{"smollm", "starcoder", "refact"}, {kOneNumber, kGpt2}, false, false},
      {{"default"}, {kPunctuation, kGpt2, kNumbers, kThreeDigits}, false, false},
  };
  return *families;
}

std::string KnownNames() {
  std::string out;
  for (const Family& family : Families()) {
    for (const std::string_view name : family.names) {
      out += out.empty() ? "" : ", ";
      out += name;
    }
  }
  return out;
}

// The end of the stretch from `begin` on in which every character is well-formed, or none is.
std::size_t StretchEnd(std::string_view text, std::size_t begin, bool& valid) {
  valid = Utf8CharacterBytes(text.substr(begin)) > 0;
  std::size_t end = begin;
  while (end < text.size()) {
    const std::size_t bytes = Utf8CharacterBytes(text.substr(end));
    if ((bytes > 0) != valid) {
      break;
    }
    end += valid ? bytes : 1;
  }
  return end;
}

}  // namespace

// One compiled expression.
class PreTokenizer::Regex {
 public:
  explicit Regex(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    CAIRN_CHECK(code_ != nullptr);
    // Only an optimisation: without it the interpreter matches the same.
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    // The limits are for expressions whose work explodes. These repeat single characters only, so
    // an attempt gives back each character of a run once at most: work is linear and no stack
    // grows. But the default limit of ten million steps is less than a run of spaces may have.
    context_ = pcre2_match_context_create(nullptr);
    CAIRN_CHECK(context_ != nullptr);
    pcre2_set_match_limit(context_, std::numeric_limits<std::uint32_t>::max());
  }
  ~Regex() {
    pcre2_match_context_free(context_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Gives the matches in `text` and the stretches between them to `take`, in order, until it
  // answers false; whether it never did. REQUIRES: `text` is UTF-8.
  bool Split(std::string_view text, const std::function<bool(std::string_view)>& take) const {
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(code_, nullptr);
    CAIRN_CHECK(match != nullptr);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::size_t done = 0;
    bool goes_on = true;
    while (goes_on && done < text.size()) {
      // The text was checked once; checking it again for every piece would make this quadratic.
      const int count =
          pcre2_match(code_, subject, text.size(), done, PCRE2_NO_UTF_CHECK, match, context_);
      // Anything else that is no match is PCRE2 out of memory: the rest stays one piece, which
      // costs tokens but no text.
      if (count <= 0) {
        break;
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
      CAIRN_CHECK_LT(bounds[0], bounds[1]);
      if (bounds[0] > done) {
        goes_on = take(text.substr(done, bounds[0] - done));
      }
      goes_on = goes_on && take(text.substr(bounds[0], bounds[1] - bounds[0]));
      done = bounds[1];
    }
    if (goes_on && done < text.size()) {
      goes_on = take(text.substr(done));
    }
    pcre2_match_data_free(match);
    return goes_on;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_context* context_ = nullptr;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  for (const Family& family : Families()) {
    for (const std::string_view known : family.names) {
      if (known != name) {
        continue;
      }
      std::unique_ptr<PreTokenizer> out(new PreTokenizer);
      for (const char* pattern : family.patterns) {
        out->regexes_.push_back(std::make_unique<const Regex>(pattern));
      }
      out->ignores_merges_ = family.ignores_merges;
      out->adds_bos_ = family.adds_bos;
      return out;
    }
  }
  return Unimplemented("read tokenizer: pre-tokenizer '{}' is not supported; supported are {}",
                       PrintableText(name), KnownNames());
}

void PreTokenizer::ForEachPiece(std::string_view text,
                                const std::function<bool(std::string_view piece)>& take) const {
  for (std::size_t begin = 0; begin < text.size();) {
    bool valid = false;
    const std::size_t end = StretchEnd(text, begin, valid);
    const std::string_view stretch = text.substr(begin, end - begin);
    if (!(valid ? Split(stretch, 0, take) : take(stretch))) {
      return;
    }
    begin = end;
  }
}

bool PreTokenizer::Split(std::string_view text, std::size_t first,
                         const std::function<bool(std::string_view piece)>& take) const {
  if (first == regexes_.size()) {
    return take(text);
  }
  return regexes_[first]->Split(
      text, [&](std::string_view piece) { return Split(piece, first + 1, take); });
}

}  // namespace cairn::compute
