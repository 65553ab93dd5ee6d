// What a session must show, kept beside the store by whoever drives it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cairn::kv {

// What a session must show: the same for the compute node that sent the operations and for the
// judge.
struct Oracle {
  using LayerHead = std::pair<std::int32_t, std::int32_t>;
  std::int64_t token_count = 0;
  std::int64_t window_start = 0;
  std::vector<std::int64_t> truth;  // position -> a number that its entries are made from
  std::map<LayerHead, std::map<std::int64_t, std::vector<std::int64_t>>> clusters;
  std::map<LayerHead, std::int64_t> next_id;
  void CutTo(std::int64_t limit);
};

}  // namespace cairn::kv
