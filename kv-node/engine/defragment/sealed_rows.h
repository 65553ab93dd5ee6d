// What the rows of a sealed segment say about where its clusters lie, for placing them again.
//
// Threading:  on the metadata thread; they touch nothing else.
// Errors:     NOT_FOUND the segment is not in the store; DATA_LOSS a row is damaged.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kv-node/engine/space/allocation.h"
#include "kv-node/engine/space/part_rows.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

struct SealedRows {
  SegmentId id;
  EntryLayout layout;
  RegionBitsMap regions;
  // By first page: how many parts and carried records rows name in a log run. Runs are shared by
  // all layers.
  std::map<PageIndex, std::int64_t> log_parts;
  std::vector<std::int32_t> layers;  // that have parts outside of packed runs, ascending
};

struct SealedLayer {
  std::int32_t layer = 0;
  PartRows parts;  // of the clusters in `order`
  // Clusters that are to be placed again, one head after the other, those that are fetched together
  // next to each other. None: the layer is as well off as it is.
  std::vector<ClusterKey> order;
  std::map<PageIndex, std::int64_t> pool_parts;  // by first page: parts that rows name in a pool
};

absl::StatusOr<std::vector<SegmentId>> LoadSealedSegments(MetaReader& reader);
absl::StatusOr<SealedRows> LoadSealedRows(MetaReader& reader, SegmentId segment);
absl::StatusOr<SealedLayer> LoadSealedLayer(MetaReader& reader, SegmentId segment,
                                            const EntryLayout& layout, std::int32_t layer);
// DATA_LOSS unless all pages that the layer's parts name are in the segment's records: what is not
// may be another's.
absl::Status CheckAllocated(const SealedLayer& layer, const SealedRows& segment);

}  // namespace cairn::kv
