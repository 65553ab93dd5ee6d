#include "tests/unit/engine/oracle.h"

#include <algorithm>

namespace cairn::kv {

void Oracle::CutTo(std::int64_t limit) {
  token_count = limit;
  window_start = std::min(window_start, limit);
  truth.resize(static_cast<std::size_t>(limit));
  for (auto& [layer_head, by_id] : clusters) {
    for (auto& [id, positions] : by_id) {
      std::erase_if(positions, [limit](std::int64_t p) { return p >= limit; });
    }
    std::erase_if(by_id, [](const auto& cluster) { return cluster.second.empty(); });
  }
}

}  // namespace cairn::kv
