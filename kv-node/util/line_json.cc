#include "kv-node/util/line_json.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/json_string.h"

namespace cairn::kv {
namespace {

// Up to `end`, which is taken too; all if it does not occur.
std::string_view Take(std::string_view& rest, char end) {
  const std::size_t at = std::min(rest.find(end), rest.size());
  const std::string_view taken = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return taken;
}

bool IsNumber(std::string_view text) {
  // What readers of JSON take as a number without losing some of it.
  constexpr std::size_t kDigitsMax = 15;
  return !text.empty() && text.size() <= kDigitsMax && (text.front() != '0' || text.size() == 1) &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string LineAsJson(std::string_view line) {
  std::string out = fmt::format("{{\"line\": {}", JsonString(Take(line, ' ')));
  while (!line.empty()) {
    const std::string_view name = Take(line, '=');
    const bool quoted = line.starts_with('"');
    if (quoted) line.remove_prefix(1);
    const std::string_view value = Take(line, quoted ? '"' : ' ');
    if (quoted) Take(line, ' ');
    out += fmt::format(", {}: {}", JsonString(name),
                       !quoted && IsNumber(value) ? std::string(value) : JsonString(value));
  }
  return out + "}";
}

}  // namespace cairn::kv
