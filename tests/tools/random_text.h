// Texts that tokenizers find hard: characters of all planes, combining marks, emoji sequences,
// control characters, bytes that are not UTF-8, long runs of one character, white space of every
// kind, names of special tokens.
//
// Threading:  pure function of the generator.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "common/base/utf8.h"
#include "tests/tools/rng.h"

namespace cairn::test {

inline constexpr std::uint64_t kTextRunMax = 600;

// One stretch of a hard text. `words`: prose to cut pieces from.
inline void AppendHardStretch(Rng& rng, std::string_view words, std::string& text) {
  constexpr std::uint32_t kSurrogateBegin = 0xd800;
  constexpr std::uint32_t kSurrogateCount = 0x800;
  constexpr std::uint32_t kCodePointEnd = 0x110000;
  constexpr std::string_view kFixed[] = {" ",
                                         "  ",
                                         "\t",
                                         "\n",
                                         "\r\n",
                                         "\n\n",
                                         "\u00a0",
                                         "\u2003",
                                         "\u3000",
                                         "\u180e",
                                         "\u200b",
                                         "\u2028",
                                         "\u0085",
                                         "\ufeff",
                                         "\u2581",
                                         "\u2581 ",
                                         " \u2581",
                                         "\u0120",
                                         "\u010a",
                                         "\ufffd",
                                         "'s",
                                         "'LL",
                                         "I'm",
                                         "</s>",
                                         "<s>",
                                         "<unk>",
                                         "<0x41>",
                                         "<|im_end|>",
                                         "<|im_en",
                                         "<",
                                         "[INST]",
                                         "1234",
                                         "\u0661",
                                         "\u00bd",
                                         "\u2167",
                                         "e\u0301",
                                         "\u0301",
                                         "\u1e9b\u0323",
                                         "\u0130",
                                         "\u01c5",
                                         "\u02b0",
                                         "\U0001f468\u200d\U0001f469\u200d\U0001f467",
                                         "\U0001f1e9\U0001f1ea",
                                         "\u261d\U0001f3fd",
                                         "\uac00\u11a8",
                                         "\u0915\u094d\u0937",
                                         "\u0e01\u0e33"};
  const auto random_character = [&rng] {
    std::uint32_t code_point =
        static_cast<std::uint32_t>(rng.Below(kCodePointEnd - kSurrogateCount));
    if (rng.Below(2) == 0) code_point %= 0x3000;  // where the scripts are dense
    return code_point < kSurrogateBegin ? code_point : code_point + kSurrogateCount;
  };
  switch (rng.Below(8)) {
    case 0:
      text.push_back(static_cast<char>(rng.Below(256)));
      break;
    case 1:
      AppendUtf8(random_character(), text);
      break;
    case 2:
      text += kFixed[rng.Below(std::size(kFixed))];
      break;
    case 3: {  // a run of one character
      std::string character(kFixed[rng.Below(std::size(kFixed))]);
      if (rng.Below(2) == 0) character = static_cast<char>(rng.Below(128));
      for (std::uint64_t i = rng.Below(kTextRunMax); i > 0; --i) text += character;
      break;
    }
    case 4:  // a character cut short
      AppendUtf8(random_character(), text);
      text.pop_back();
      break;
    case 5:
      text.append(rng.Below(5), ' ');
      break;
    default: {
      const std::uint64_t begin = rng.Below(words.size());
      text += words.substr(begin, rng.Below(20));
    }
  }
}

inline std::string HardText(Rng& rng, std::string_view words) {
  std::string text;
  for (std::uint64_t i = rng.Below(40); i > 0; --i) AppendHardStretch(rng, words, text);
  return text;
}

}  // namespace cairn::test
