#include "clients/cairn/typed_path.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace cairn::cli {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string WithHome(std::string path) {
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe): read only
  if (home != nullptr && path.starts_with("~/")) path.replace(0, 1, home);
  return path;
}

// The end of what a quote at `begin` holds; npos: it is no quote, for nothing ends it.
std::size_t EndOfQuote(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  for (std::size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == quote) return i;
    if (quote == '"' && text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

// Between double quotes a backslash stands for itself in front of other characters.
std::string InQuotes(std::string_view text, char quote) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escapes = quote == '"' && text[i] == '\\' && i + 1 < text.size() &&
                         std::string_view("\"\\$`").find(text[i + 1]) != std::string_view::npos;
    if (escapes) ++i;
    out += text[i];
  }
  return out;
}

std::string WithoutQuotes(std::string_view text) {
  std::string out;
  std::size_t kept = 0;  // of `out`, what is no blank at the end
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::size_t end = c == '"' || c == '\'' ? EndOfQuote(text, i) : std::string_view::npos;
    if (end != std::string_view::npos) {
      out += InQuotes(text.substr(i + 1, end - i - 1), c);
      i = end;
    } else if (c == '\\' && i + 1 < text.size()) {
      out += text[++i];
    } else {
      out += c;
      if (kSpace.find(c) != std::string_view::npos) continue;
    }
    kept = out.size();
  }
  out.resize(kept);
  return out;
}

}  // namespace

std::string FilePath(std::string_view typed) {
  typed.remove_prefix(std::min(typed.find_first_not_of(kSpace), typed.size()));
  const bool at_home = typed.starts_with("~/");
  std::string path = WithoutQuotes(typed);
  if (at_home) path = WithHome(std::move(path));
  std::string as_typed(typed.substr(0, typed.find_last_not_of(kSpace) + 1));
  if (at_home) as_typed = WithHome(std::move(as_typed));
  const auto is_there = [](const std::string& name) { return ::access(name.c_str(), F_OK) == 0; };
  return !is_there(path) && is_there(as_typed) ? as_typed : path;
}

std::string TypedPath(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char c = path[i];
    const bool is_blank = kSpace.find(c) != std::string_view::npos;
    const bool at_an_end = i == 0 || i + 1 == path.size();
    const bool is_home = i == 0 && path.starts_with("~/");
    if (c == '\\' || c == '\'' || c == '"' || is_home || (is_blank && at_an_end)) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace cairn::cli
