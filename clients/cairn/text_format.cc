#include "clients/cairn/text_format.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/utf8.h"

namespace cairn::cli {
namespace {

// Control characters, and those that change the direction of text.
bool IsControl(std::uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0) ||
         (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

}  // namespace

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string EscapeControls(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t good = Utf8CharacterBytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(good, 1));
    text.remove_prefix(character.size());
    if (good == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(character[0]));
    } else if (character == "\n") {
      out += "\\n";
    } else if (character == "\t") {
      out += "\\t";
    } else if (const std::uint32_t code_point = Utf8CodePoint(character); IsControl(code_point)) {
      out += fmt::format("\\u{:04x}", code_point);
    } else {
      out += character;
    }
  }
  return out;
}

std::string HumanBytes(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string LocalTime(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", parts);
}

}  // namespace cairn::cli
