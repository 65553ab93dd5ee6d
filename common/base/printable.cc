#include "common/base/printable.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "common/base/utf8.h"

namespace cairn {
namespace {

enum class LineEnds { kEscape, kKeep };

std::string Escape(std::string_view text, LineEnds line_ends) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = Utf8CharacterBytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(good, 1));
    text.remove_prefix(character.size());
    const bool is_layout = character == "\n" || character == "\t";
    if (good == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(character[0]));
    } else if (is_layout && line_ends == LineEnds::kEscape) {
      out += character == "\n" ? "\\n" : "\\t";
    } else if (const std::uint32_t code_point = Utf8CodePoint(character);
               !is_layout && IsControlCharacter(code_point)) {
      out += fmt::format("\\u{:04x}", code_point);
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace

bool IsControlCharacter(std::uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0) || code_point == 0x061c ||
         code_point == 0x200e || code_point == 0x200f ||
         (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

std::string EscapeControls(std::string_view text) { return Escape(text, LineEnds::kEscape); }

std::string EscapeControlsInLines(std::string_view text) { return Escape(text, LineEnds::kKeep); }

}  // namespace cairn
