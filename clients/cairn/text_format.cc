#include "clients/cairn/text_format.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>

#include <fmt/chrono.h>

namespace cairn::cli {

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

absl::StatusOr<std::string> ReadTextFile(const std::string& path, std::int64_t bytes_max) {
  std::ifstream file;
  if (path != "-") {
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file) return ErrnoStatus(errno != 0 ? errno : ENOENT, fmt::format("open '{}'", path));
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::string text(static_cast<std::size_t>(bytes_max) + 1, '\0');
  stream.read(text.data(), std::ssize(text));
  if (stream.bad()) return DataLoss("read '{}'", path);
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (std::ssize(text) > bytes_max) {
    return InvalidArgument("'{}' has more than {} bytes, which is the most", path, bytes_max);
  }
  return text;
}

}  // namespace cairn::cli
