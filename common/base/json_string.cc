#include "common/base/json_string.h"

#include <cstdint>

#include <fmt/format.h>

#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace cairn {

std::string JsonString(std::string_view text) {
  const std::string good = ReplaceBadUtf8(text);
  std::string_view rest = good;
  std::string out = "\"";
  while (!rest.empty()) {
    const std::string_view character = rest.substr(0, Utf8CharacterBytes(rest));
    rest.remove_prefix(character.size());
    const std::uint32_t code_point = Utf8CodePoint(character);
    if (character == "\"" || character == "\\") {
      out += '\\';
      out += character;
    } else if (character == "\n") {
      out += "\\n";
    } else if (IsControlCharacter(code_point)) {
      out += fmt::format("\\u{:04x}", code_point);
    } else {
      out += character;
    }
  }
  return out + "\"";
}

}  // namespace cairn
