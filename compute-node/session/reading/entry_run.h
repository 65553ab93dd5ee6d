// EntryRun: entries of one KV head in the order in which they are attended, wherever they lie.
// Attention blocks are counted from the first one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn::compute {

struct EntryRun {
  std::int32_t head = 0;
  std::vector<const std::byte*> entries;
};

}  // namespace cairn::compute
