#include "clients/cairn/text_format.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace cairn::cli {

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t good = Utf8CharacterBytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(good, 1));
    text.remove_prefix(character.size());
    const std::uint32_t code_point = good == 0 ? 0 : Utf8CodePoint(character);
    if (character == "\"" || character == "\\") {
      out += '\\';
      out += character;
    } else if (character == "\n") {
      out += "\\n";
    } else if (good != 0 && IsControlCharacter(code_point)) {
      out += fmt::format("\\u{:04x}", code_point);
    } else {
      out += character;
    }
  }
  return out + "\"";
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
