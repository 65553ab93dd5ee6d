#include "common/base/closest_name.h"

#include <algorithm>
#include <vector>

namespace cairn {
namespace {

// Letters to change, add, leave out or swap with the next until `from` is `to`.
std::size_t EditDistance(std::string_view from, std::string_view to) {
  const std::size_t width = to.size() + 1;
  std::vector<std::size_t> rows((from.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return rows[i * width + j]; };
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const std::size_t changed = at(i - 1, j - 1) + (from[i - 1] == to[j - 1] ? 0 : 1);
      at(i, j) = std::min({changed, at(i - 1, j) + 1, at(i, j - 1) + 1});
      const bool is_swap = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (is_swap) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return rows.back();
}

bool IsSeparator(char c) { return c == '-' || c == '_'; }

// Whether `words` has `part` as one of its words or several in a row.
bool HasWords(std::string_view words, std::string_view part) {
  for (std::size_t at = words.find(part); at != std::string_view::npos;
       at = words.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || IsSeparator(words[at - 1])) &&
        (end == words.size() || IsSeparator(words[end]))) {
      return true;
    }
  }
  return false;
}

// The only name that is words of `unknown`, or that has it as words; empty: none, or several.
std::string NameOfSameWords(std::string_view unknown, std::span<const std::string> known) {
  std::string found;
  for (const std::string& name : known) {
    if (name.empty() || (!HasWords(unknown, name) && !HasWords(name, unknown))) continue;
    if (!found.empty()) return "";
    found = name;
  }
  return found;
}

}  // namespace

std::string ClosestName(std::string_view unknown, std::span<const std::string> known) {
  constexpr std::size_t kDistanceMax = 3;
  // What is longer is no slip of a name, and comparing it takes time.
  constexpr std::size_t kNameBytesMax = 64;
  if (unknown.empty() || unknown.size() > kNameBytesMax) return "";
  std::string best;
  std::size_t best_distance = std::min(kDistanceMax, unknown.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = EditDistance(unknown, name);
    if (distance >= best_distance) continue;
    best = name;
    best_distance = distance;
  }
  return best.empty() ? NameOfSameWords(unknown, known) : best;
}

}  // namespace cairn
