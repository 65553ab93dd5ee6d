#include "common/base/closest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace cairn {
namespace {

// Letters to change, add or leave out until `from` is `to`.
std::size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string ClosestName(std::string_view unknown, std::span<const std::string> known) {
  constexpr std::size_t kDistanceMax = 3;
  // What is longer is no slip of a name, and comparing it takes time.
  constexpr std::size_t kNameBytesMax = 64;
  if (unknown.size() > kNameBytesMax) return "";
  std::string best;
  std::size_t best_distance = std::min(kDistanceMax, unknown.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = EditDistance(unknown, name);
    if (distance >= best_distance) continue;
    best = name;
    best_distance = distance;
  }
  return best;
}

}  // namespace cairn
