// PackedLayout counts what a layout would move in which the clusters of one (layer, head) lie one
// behind the other without room: an append shifts all that lies behind the cluster; a split leaves
// one half in place, moves the other one to the end and closes the hole.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace cairn::bench {

class PackedLayout {
 public:
  // `together`: clusters are written for the first time, or at the end; nothing has to move for
  // the entries of one prompt chunk.
  void Append(std::int64_t id, std::int64_t count, bool together);
  void Split(std::int64_t parent, std::int64_t stays, std::int64_t stays_count, std::int64_t moves,
             std::int64_t moves_count);

  std::int64_t moved_entry_count() const { return moved_; }

 private:
  // Index of the cluster, or one behind the last; and the entries behind it.
  std::pair<std::size_t, std::int64_t> Find(std::int64_t id) const;

  std::vector<std::pair<std::int64_t, std::int64_t>> clusters_;  // (id, entries) in their order
  std::int64_t moved_ = 0;
};

}  // namespace cairn::bench
