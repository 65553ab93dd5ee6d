#include "common/base/utf8.h"

#include <algorithm>

namespace cairn {
namespace {

std::uint8_t ByteAt(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

// Length announced by a lead byte, and the range of its second byte; the third and fourth are
// always 80..BF. This is table 3-7 of the Unicode standard.
struct Lead {
  std::size_t bytes;
  std::uint8_t second_min;
  std::uint8_t second_max;
};

Lead LeadOf(std::uint8_t byte) {
  if (byte < 0x80) {
    return {1, 0, 0};
  }
  if (byte >= 0xc2 && byte <= 0xdf) {
    return {2, 0x80, 0xbf};
  }
  if (byte >= 0xe0 && byte <= 0xef) {
    return {3, static_cast<std::uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            static_cast<std::uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  if (byte >= 0xf0 && byte <= 0xf4) {
    return {4, static_cast<std::uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
            static_cast<std::uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {0, 0, 0};
}

// How many bytes of `text` follow the rules of the character that its first byte announces.
std::size_t GoodBytes(std::string_view text, const Lead& lead) {
  std::size_t good = 1;
  while (good < lead.bytes && good < text.size()) {
    const std::uint8_t byte = ByteAt(text, good);
    const bool fits = good == 1 ? byte >= lead.second_min && byte <= lead.second_max
                                : byte >= 0x80 && byte <= 0xbf;
    if (!fits) {
      break;
    }
    ++good;
  }
  return good;
}

}  // namespace

std::size_t Utf8CharacterBytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const Lead lead = LeadOf(ByteAt(text, 0));
  return lead.bytes != 0 && GoodBytes(text, lead) == lead.bytes ? lead.bytes : 0;
}

bool IsUtf8Prefix(std::string_view text) {
  if (text.empty()) {
    return true;
  }
  const Lead lead = LeadOf(ByteAt(text, 0));
  return text.size() < lead.bytes && GoodBytes(text, lead) == text.size();
}

std::size_t Utf8GoodBytes(std::string_view text) {
  std::size_t good = 0;
  while (const std::size_t bytes = Utf8CharacterBytes(text.substr(good))) good += bytes;
  return good;
}

std::string ReplaceBadUtf8(std::string_view text) {
  constexpr std::uint32_t kReplacement = 0xfffd;
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = Utf8GoodBytes(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    AppendUtf8(kReplacement, out);
    text.remove_prefix(1);
  }
  return out;
}

std::uint32_t Utf8CodePoint(std::string_view character) {
  const std::uint32_t first = ByteAt(character, 0);
  if (character.size() == 1) {
    return first;
  }
  std::uint32_t code_point = first & (0x7fU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) {
    code_point = code_point << 6 | (ByteAt(character, i) & 0x3fU);
  }
  return code_point;
}

void AppendUtf8(std::uint32_t code_point, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xe0 | code_point >> 12);
    } else {
      put(0xf0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3f));
    }
    put(0x80 | (code_point >> 6 & 0x3f));
  }
  put(0x80 | (code_point & 0x3f));
}

std::size_t Utf8WholeBytes(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text.size();
  constexpr std::size_t kCharacterBytesMax = 4;
  for (std::size_t back = 0; back < std::min(kCharacterBytesMax, bytes_max); ++back) {
    const std::size_t end = bytes_max - back;
    const bool continues = (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U;
    if (!continues) return end;
  }
  return std::max<std::size_t>(1, bytes_max);
}

}  // namespace cairn
