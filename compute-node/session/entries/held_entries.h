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
#include "compute-node/session/reading/cluster_heads.h"

namespace cairn::compute {

class HeldEntries {
 public:
  struct Entry {
    ClusterId cluster_id;  // that it belongs to
    std::int64_t position = 0;
    std::string bytes;  // the cluster's entry

    const std::byte* data() const { return reinterpret_cast<const std::byte*>(bytes.data()); }
  };

  // Borrows `memory`, which outlives it.
  HeldEntries(const EntryLayout& layout, KvMemory& memory);
  ~HeldEntries() { Clear(); }
  HeldEntries(const HeldEntries&) = delete;
  HeldEntries& operator=(const HeldEntries&) = delete;

  // REQUIRES: `bytes` are an entry of the cluster; the position is not held for its head.
  void Add(std::int32_t layer, const HeldEntry& held, std::string bytes);
  // `head`: of a cluster, here and below. What is held for clusters of all heads is not held for
  // those of one. Null if it is not held.
  const Entry* Find(std::int32_t layer, std::int32_t head, std::int64_t position) const;
  void Remove(std::int32_t layer, std::int32_t head, const Positions& positions);
  // Ascending positions.
  const std::vector<Entry>& Of(std::int32_t layer, std::int32_t head) const {
    return entries_[ClusterRow(layout_, layer, head)];
  }
  // Positions held for one cluster.
  Positions OfCluster(std::int32_t layer, const ClusterRef& cluster) const;
  void Clear();

 private:
  const EntryLayout layout_;
  KvMemory& memory_;
  std::vector<std::vector<Entry>> entries_;  // by ClusterRow
};

}  // namespace cairn::compute
