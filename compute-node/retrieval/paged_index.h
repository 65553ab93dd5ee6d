// PagedIndex is the part of a retrieval policy that keeps an index of its clusters, of which only
// what EntrySelector::Select needs must be in memory: the rest is rows in the KV node, which come
// layer by layer when entries join clusters.
//
// LoadIndex brings a layer's rest from the rows that were taken; Estimate, LoadMeans, Regroup and,
// where StoreReadsIndex says so, Store need it. What changed and was not taken stays in memory.
//
// Threading:  one thread at a time, as the conversation that owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/kv/index_record.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/retrieval/cluster_keeper.h"

namespace cairn::compute {

class PagedIndex {
 public:
  virtual ~PagedIndex() = default;

  // Rows of a layer that the next checkpoint must store; and these were not stored after all.
  virtual std::vector<IndexRow> TakeChangedRows(std::int32_t layer) = 0;
  virtual void ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) = 0;
  // What the last checkpoint stored, ascending; `clusters` are all those that the session sees, or
  // null when the records are known to be complete and of whole clusters. It may leave the index
  // unloaded.
  virtual absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                                    const std::vector<ClusterInfo>* clusters, ThreadPool& pool) = 0;

  virtual bool IndexIsLoaded(std::int32_t layer) const = 0;
  // Whether Store of these needs the layer's index loaded.
  virtual bool StoreReadsIndex(const LeavingEntries& leaving) const = 0;
  // Of two records of a cluster the later counts. Returns the number of clusters that lack one:
  // FlagUnknown says that this is so, and not for want of a better answer. REQUIRES: not loaded.
  virtual std::int64_t LoadIndex(std::int32_t layer, std::span<const IndexRecords> records,
                                 ThreadPool& pool) = 0;
  virtual void FlagUnknown(std::int32_t layer) = 0;
  virtual void UnloadIndex(std::int32_t layer) = 0;

  // What UnloadIndex frees, when the layer is loaded; 0: nothing.
  virtual std::int64_t IndexBytes(std::int32_t layer) const = 0;
  // What the clusters of a layer take here while its index is unloaded, and their rows in the KV
  // node, about.
  virtual std::int64_t ClusterBytes(std::int32_t layer) const = 0;
};

}  // namespace cairn::compute
