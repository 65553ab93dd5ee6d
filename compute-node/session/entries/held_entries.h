// HeldEntries are the entries of a conversation that left the window and are in no cluster yet: the
// buffers of delayed splits. They stay in memory and are attended by every step.
//
// Threading:  one thread for one layer; different layers may be worked on at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/kv/messages.h"
#include "compute-node/retrieval/cluster_keeper.h"
#include "compute-node/session/kv_memory.h"

namespace cairn::compute {

class HeldEntries {
 public:
  struct Entry {
    ClusterId cluster_id;  // that it belongs to
    std::int64_t position = 0;
    std::string bytes;
  };

  // Borrows `memory`, which outlives it.
  HeldEntries(const EntryLayout& layout, KvMemory& memory);
  ~HeldEntries() { Clear(); }
  HeldEntries(const HeldEntries&) = delete;
  HeldEntries& operator=(const HeldEntries&) = delete;

  // REQUIRES: the position is above the others of that layer and head that are held, or was never
  // held: they are kept in ascending order.
  void Add(std::int32_t layer, const HeldEntry& held, const std::byte* entry);
  // Null if it is not held.
  const Entry* Find(std::int32_t layer, std::int32_t head, std::int64_t position) const;
  void Remove(std::int32_t layer, std::int32_t head, const Positions& positions);
  // Ascending positions.
  const std::vector<Entry>& Of(std::int32_t layer, std::int32_t head) const {
    return entries_[Row(layer, head)];
  }
  // Positions held for one cluster.
  Positions OfCluster(std::int32_t layer, const ClusterRef& cluster) const;
  void Clear();

 private:
  std::size_t Row(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(std::int64_t{layer} * head_count_ + head);
  }

  const std::int64_t head_count_;
  const std::int64_t entry_bytes_;
  KvMemory& memory_;
  std::vector<std::vector<Entry>> entries_;  // by (layer, head)
};

}  // namespace cairn::compute
