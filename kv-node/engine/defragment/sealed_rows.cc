#include "kv-node/engine/defragment/sealed_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/place/placement_order.h"

namespace cairn::kv {
namespace {

// What opening a session checks too.
absl::Status CheckParts(const ParsedClusterRowKey& key, const std::vector<StoredPart>& parts) {
  const bool is_cluster = key.kind == ClusterRowKind::kParts;
  std::int64_t last = -1;
  bool ok = !parts.empty() && (!is_cluster || key.key.cluster_id.value() >= 1);
  for (const StoredPart& part : parts) {
    ok = ok && part.kind != ExtentKind::kIndexRun && part.positions.first() > last;
    last = part.positions.last();
  }
  if (ok) return absl::OkStatus();
  return DataLoss("the row of layer {} head {} cluster {} is damaged", key.key.layer, key.key.head,
                  key.key.cluster_id);
}

// Rows of clusters and carried entries under a prefix, as (key, parts).
template <typename Fn>
absl::Status ScanParts(MetaReader& reader, const std::string& prefix, const EntryLayout& layout,
                       const Fn& fn) {
  return reader.Scan(
      Family::kClusters, prefix,
      [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const ParsedClusterRowKey key, ParseClusterRowKey(key_bytes));
        if (key.kind != ClusterRowKind::kParts && key.kind != ClusterRowKind::kCarried) {
          return absl::OkStatus();
        }
        if (key.key.layer >= layout.layer_count || key.key.head >= layout.head_count) {
          return DataLoss("a row of layer {} head {}, which the segment does not have",
                          key.key.layer, key.key.head);
        }
        CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredPart> parts,
                               DecodeParts(value, layout.EntryBytes(key.key.head)));
        CAIRN_RETURN_IF_ERROR(CheckParts(key, parts));
        fn(key, parts);
        return absl::OkStatus();
      });
}

bool IsPacked(const StoredPart& part) { return part.kind == ExtentKind::kPackedRun; }

// Links between clusters of one head, of those that are to be placed. What cannot be read is passed
// over: it costs places only.
absl::StatusOr<std::map<std::int32_t, std::vector<ClusterPair>>> LoadLinks(
    MetaReader& reader, SegmentId segment, const SealedLayer& layer) {
  std::map<std::int32_t, std::vector<ClusterPair>> links;
  CAIRN_RETURN_IF_ERROR(
      reader.Scan(Family::kCoretrieval, SegmentLayerPrefix(segment, layer.layer),
                  [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                    const absl::StatusOr<ClusterKey> key = ParseLinkRowKey(key_bytes);
                    const absl::StatusOr<std::vector<ClusterLink>> row = DecodeLinks(value);
                    if (!key.ok() || !row.ok() || !layer.parts.Contains(*key))
                      return absl::OkStatus();
                    for (const ClusterLink& link : *row) {
                      if (!layer.parts.Contains({key->layer, key->head, link.cluster})) continue;
                      links[key->head].push_back({key->cluster_id, link.cluster, link.count});
                    }
                    return absl::OkStatus();
                  }));
  return links;
}

// What has links goes first, along them; the others follow in the order of their ids, which is the
// order that they were made in.
std::vector<ClusterKey> OrderOf(const SealedLayer& layer,
                                std::map<std::int32_t, std::vector<ClusterPair>> links) {
  std::map<std::int32_t, std::vector<ClusterId>> heads;
  layer.parts.ForEachKey([&](const ClusterKey& key) { heads[key.head].push_back(key.cluster_id); });
  std::vector<ClusterKey> order;
  for (const auto& [head, ids] : heads) {
    for (const ClusterId id : OrderInChains(ids, std::move(links[head]))) {
      order.push_back({layer.layer, head, id});
    }
  }
  return order;
}

// What clusters take, and what they would take.
class SpaceUse {
 public:
  void Add(const std::vector<StoredPart>& parts, std::int64_t entry_bytes) {
    ++cluster_count_;
    scattered_count_ += parts.size() > 1 ? 1 : 0;
    for (const StoredPart& part : parts) {
      const std::int64_t bytes = part.count() * entry_bytes;
      entries_bytes_ += bytes;
      if (part.kind != ExtentKind::kPool) {
        place_bytes_ += bytes;
      } else if (pools_.insert(part.first_page).second) {
        place_bytes_ += part.extent_bytes();
      }
    }
  }
  // Pools are 7/8 full, and 7/8 of the clusters lie in one piece.
  bool IsTight() const {
    return entries_bytes_ * 8 >= place_bytes_ * 7 && scattered_count_ * 8 <= cluster_count_;
  }

 private:
  std::set<PageIndex> pools_;
  std::int64_t entries_bytes_ = 0;
  std::int64_t place_bytes_ = 0;  // of whole pools, and of records
  std::int64_t cluster_count_ = 0;
  std::int64_t scattered_count_ = 0;  // with more than one part
};

}  // namespace

absl::StatusOr<std::vector<SegmentId>> LoadSealedSegments(MetaReader& reader) {
  std::vector<SegmentId> out;
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSegments, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const std::optional<SegmentId> id, ParseSegmentHeadKey(key));
        if (!id) return absl::OkStatus();
        const absl::StatusOr<SegmentRow> row = DecodeSegmentRow(value);
        if (row.ok() && row->sealed) out.push_back(*id);
        return absl::OkStatus();
      }));
  return out;
}

absl::StatusOr<SealedRows> LoadSealedRows(MetaReader& reader, SegmentId segment) {
  CAIRN_ASSIGN_OR_RETURN(const SegmentRow row, LoadSegmentRow(reader, segment));
  SealedRows out;
  out.id = segment;
  out.layout = row.layout;
  std::set<std::int32_t> layers;
  CAIRN_RETURN_IF_ERROR(
      ScanParts(reader, SegmentPrefix(segment), row.layout,
                [&](const ParsedClusterRowKey& key, const std::vector<StoredPart>& parts) {
                  for (const StoredPart& part : parts) {
                    if (part.kind == ExtentKind::kLogRun) ++out.log_parts[part.first_page];
                  }
                  if (key.kind == ClusterRowKind::kParts &&
                      std::none_of(parts.begin(), parts.end(), IsPacked)) {
                    layers.insert(key.key.layer);
                  }
                }));
  out.layers.assign(layers.begin(), layers.end());
  CAIRN_ASSIGN_OR_RETURN(out.regions, LoadRegions(reader, segment));
  return out;
}

absl::StatusOr<SealedLayer> LoadSealedLayer(MetaReader& reader, SegmentId segment,
                                            const EntryLayout& layout, std::int32_t layer) {
  SealedLayer out;
  out.layer = layer;
  SpaceUse use;
  const auto add = [&](const ParsedClusterRowKey& key, const std::vector<StoredPart>& parts) {
    if (key.kind != ClusterRowKind::kParts || parts.empty()) return;
    for (const StoredPart& part : parts) {
      if (part.kind == ExtentKind::kPool) ++out.pool_parts[part.first_page];
    }
    // A cluster's parts are placed again together: one in a packed run says that they were.
    if (std::any_of(parts.begin(), parts.end(), IsPacked)) return;
    use.Add(parts, layout.EntryBytes(key.key.head));
    out.parts.Put(key.key, parts);
  };
  CAIRN_RETURN_IF_ERROR(ScanParts(reader, SegmentLayerPrefix(segment, layer), layout, add));
  CAIRN_ASSIGN_OR_RETURN(auto links, LoadLinks(reader, segment, out));
  // Writing wears flash.
  if (links.empty() && use.IsTight()) return out;
  out.order = OrderOf(out, std::move(links));
  return out;
}

absl::Status CheckAllocated(const SealedLayer& layer, const SealedRows& segment) {
  absl::Status status;
  // Thousands of parts lie in one run of thousands of pages, and the engine waits for this.
  std::set<std::pair<PageIndex, std::int64_t>> checked;
  layer.parts.ForEach([&](const ClusterKey& key, const std::vector<StoredPart>& parts) {
    for (const StoredPart& part : parts) {
      if (!checked.emplace(part.first_page, part.page_count).second) continue;
      const std::optional<PageIndex> page =
          FirstUnrecorded(segment.regions, part.first_page, part.page_count);
      if (!page || !status.ok()) continue;
      status = DataLoss("layer {} head {} cluster {}: page {} is not in the allocation records",
                        key.layer, key.head, key.cluster_id, *page);
    }
  });
  return status;
}

}  // namespace cairn::kv
