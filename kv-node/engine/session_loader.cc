#include "kv-node/engine/session_loader.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

constexpr int kChainLengthMax = 100000;  // a longer one is a loop

template <typename T>
absl::Status Bad(absl::StatusOr<T> decoded, std::string_view what, std::int64_t id) {
  return Annotate(decoded.status(), fmt::format("{} {}", what, id));
}

absl::Status LoadClusterRows(MetaReader& reader, StoredSegment& segment) {
  return reader.Scan(
      Family::kClusters, SegmentPrefix(segment.id),
      [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const ParsedClusterRowKey key, ParseClusterRowKey(key_bytes));
        const EntryLayout& layout = segment.row.layout;
        if (key.key.layer >= layout.layer_count || key.key.head >= layout.head_count) {
          return DataLoss("segment {} has a row of layer {} head {}, which it does not have",
                          segment.id, key.key.layer, key.key.head);
        }
        switch (key.kind) {
          case ClusterRowKind::kMask:
            segment.masks.push_back(key.key);
            return absl::OkStatus();
          case ClusterRowKind::kEvicted: {
            CAIRN_ASSIGN_OR_RETURN(Positions positions, DecodePositions(value));
            segment.evicted.emplace_back(key.key, std::move(positions));
            return absl::OkStatus();
          }
          case ClusterRowKind::kParts:
          case ClusterRowKind::kCarried: {
            CAIRN_ASSIGN_OR_RETURN(std::vector<StoredPart> parts,
                                   DecodeParts(value, layout.EntryBytes(key.key.head)));
            segment.parts.emplace_back(key, std::move(parts));
            return absl::OkStatus();
          }
        }
        return absl::OkStatus();
      });
}

absl::Status LoadIndexRows(MetaReader& reader, StoredSegment& segment) {
  return reader.Scan(Family::kIndex, SegmentPrefix(segment.id),
                     [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                       CAIRN_ASSIGN_OR_RETURN(const ClusterKey key, ParseIndexRowKey(key_bytes));
                       CAIRN_ASSIGN_OR_RETURN(IndexRow row, DecodeIndexRow(key, value));
                       segment.index.push_back(std::move(row));
                       segment.index_layers.push_back(key.layer);
                       return absl::OkStatus();
                     });
}

// What is wrong here costs places only: it is told and passed over.
absl::Status LoadLinkRows(MetaReader& reader, const StoredSegment& segment, bool own,
                          std::vector<StoredLinks>& links) {
  const EntryLayout& layout = segment.row.layout;
  return reader.Scan(
      Family::kCoretrieval, SegmentPrefix(segment.id),
      [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
        if (links.size() >= kCoFetchClustersMax) return absl::OkStatus();
        const absl::StatusOr<ClusterKey> key = ParseLinkRowKey(key_bytes);
        if (!key.ok() || key->layer >= layout.layer_count || key->head >= layout.head_count) {
          LogWarning("segment={} has a co-retrieval row with a wrong key", segment.id);
          return absl::OkStatus();
        }
        absl::StatusOr<std::vector<ClusterLink>> row = DecodeLinks(value);
        if (!row.ok()) {
          LogWarning("segment={} error=\"{}\"", segment.id, Message(row.status()));
          row = std::vector<ClusterLink>();
        }
        links.push_back({*key, *std::move(row), own});
        return absl::OkStatus();
      });
}

// Positions of a cluster must ascend over the chain's parts (rule 9); a store that breaks this is
// not shown.
absl::Status CheckAscending(const SessionState& state) {
  for (const SegmentRows& rows : state.chain()) {
    for (const auto& [key, parts] : rows.parts) {
      std::int64_t last = -1;
      for (const VisiblePart& visible : state.PartsOf(key)) {
        if (visible.part->positions.first() <= last) {
          return DataLoss("layer {} head {} cluster {} holds position {} twice", key.layer,
                          key.head, key.cluster_id, visible.part->positions.first());
        }
        last = visible.part->positions.at(visible.count - 1);
      }
    }
  }
  return absl::OkStatus();
}

// The ends of pools that a segment's rows leave free are known from the rows alone: allocation
// records have whole pools.
absl::Status AdoptPools(const EntryLayout& layout, SegmentRows& rows, PoolTable& pools) {
  for (auto& [key, parts] : rows.parts) {
    for (Part& part : parts) {
      if (part.extent->kind() != ExtentKind::kPool) continue;
      CAIRN_RETURN_IF_ERROR(pools.Adopt({key.layer, key.head}, layout.EntryBytes(key.head), part));
    }
  }
  return absl::OkStatus();
}

class ExtentTable {
 public:
  explicit ExtentTable(std::shared_ptr<FreeMap> free_map) : free_map_(std::move(free_map)) {}

  absl::StatusOr<Part> ToPart(StoredPart stored) {
    if (stored.first_page.value() < 2 ||
        stored.first_page.value() + stored.page_count > free_map_->page_count()) {
      return DataLoss("part {} names pages {} + {}, beyond the extent file's {}", stored.id,
                      stored.first_page, stored.page_count, free_map_->page_count());
    }
    ExtentRef& extent = extents_[stored.first_page];
    if (extent == nullptr) {
      extent = std::make_shared<Extent>(free_map_, stored.kind, stored.first_page,
                                        stored.page_count, true);
    }
    if (extent->page_count() != stored.page_count || extent->kind() != stored.kind) {
      return DataLoss("part {} names the extent at page {} with another size or kind", stored.id,
                      stored.first_page);
    }
    Part part;
    part.id = stored.id;
    part.extent = extent;
    part.offset_bytes = stored.offset_bytes;
    part.direction = stored.direction;
    part.positions = std::move(stored.positions);
    part.crcs = std::move(stored.crcs);
    return part;
  }

  std::vector<ExtentRef> LogExtents() const {
    std::vector<ExtentRef> out;
    for (const auto& [page, extent] : extents_) {
      if (extent->kind() == ExtentKind::kLogRun) out.push_back(extent);
    }
    return out;
  }

 private:
  const std::shared_ptr<FreeMap> free_map_;
  std::map<PageIndex, ExtentRef> extents_;
};

absl::StatusOr<SegmentRows> BuildRows(StoredSegment stored, ExtentTable& extents) {
  SegmentRows rows;
  rows.id = stored.id;
  rows.parent = stored.row.parent;
  rows.start = stored.row.start;
  rows.limit = stored.limit;
  rows.has_checkpoint = stored.row.has_checkpoint;
  rows.masks.insert(stored.masks.begin(), stored.masks.end());
  for (auto& [key, positions] : stored.evicted) rows.evicted.emplace(key, std::move(positions));
  for (auto& [key, stored_parts] : stored.parts) {
    auto& parts = (key.kind == ClusterRowKind::kParts ? rows.parts : rows.carried)[key.key];
    for (StoredPart& stored_part : stored_parts) {
      CAIRN_ASSIGN_OR_RETURN(Part part, extents.ToPart(std::move(stored_part)));
      parts.push_back(std::move(part));
    }
  }
  for (std::size_t i = 0; i < stored.index.size(); ++i) {
    const ClusterRef& cluster = stored.index[i].cluster;
    rows.index[{stored.index_layers[i], cluster.head, cluster.cluster_id}] =
        std::move(stored.index[i]);
  }
  return rows;
}

}  // namespace

absl::StatusOr<SegmentRow> LoadSegmentRow(MetaReader& reader, SegmentId segment) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                         reader.Get(Family::kSegments, SegmentHeadKey(segment)));
  if (!bytes) return NotFound("segment {} is not in the store", segment);
  absl::StatusOr<SegmentRow> row = DecodeSegmentRow(*bytes);
  if (!row.ok()) return Bad(row, "segment", segment.value());
  return row;
}

absl::StatusOr<StoredSession> LoadSession(MetaReader& reader, SessionId session) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                         reader.Get(Family::kSessions, SessionKeyBytes(session)));
  if (!bytes) return NotFound("session {} is not in the store", session);
  StoredSession out;
  out.id = session;
  absl::StatusOr<SessionRow> row = DecodeSessionRow(*bytes);
  if (!row.ok()) return Bad(row, "session", session.value());
  out.row = *std::move(row);
  std::int64_t limit = kNoLimit;
  for (SegmentId id = out.row.segment; id.value() != 0;) {
    if (out.chain.size() >= kChainLengthMax) {
      return DataLoss("session {} has a chain of more than {} segments", session, kChainLengthMax);
    }
    StoredSegment segment;
    segment.id = id;
    segment.limit = limit;
    CAIRN_ASSIGN_OR_RETURN(segment.row, LoadSegmentRow(reader, id));
    CAIRN_RETURN_IF_ERROR(LoadClusterRows(reader, segment));
    CAIRN_RETURN_IF_ERROR(LoadIndexRows(reader, segment));
    CAIRN_RETURN_IF_ERROR(LoadLinkRows(reader, segment, id == out.row.segment, out.links));
    limit = segment.row.start;
    id = segment.row.parent;
    out.chain.push_back(std::move(segment));
  }
  std::reverse(out.chain.begin(), out.chain.end());
  CAIRN_RETURN_IF_ERROR(
      reader.Scan(Family::kPools, SegmentPrefix(out.row.segment),
                  [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                    CAIRN_ASSIGN_OR_RETURN(const ParsedRegionKey key, ParseRegionKey(key_bytes));
                    CAIRN_ASSIGN_OR_RETURN(out.regions[key.region], DecodeRegion(value));
                    return absl::OkStatus();
                  }));
  CAIRN_ASSIGN_OR_RETURN(out.policy, LoadPolicy(reader, out.row.segment));
  const std::int64_t start = out.chain.back().row.start;
  const std::int64_t token_count = out.row.token_count;
  out.tail_start = std::max(start, token_count / kTokenBlockCount * kTokenBlockCount);
  CAIRN_ASSIGN_OR_RETURN(out.tail_tokens, LoadTokens(reader, out.row.segment, token_count,
                                                     out.tail_start, token_count - out.tail_start));
  return out;
}

namespace {

// Links of and to clusters that the chain does not show are of no use: rows of sealed segments stay
// when their clusters are replaced.
void LoadLinks(const SessionState& state, std::vector<StoredLinks> stored, CoFetches& co_fetches) {
  for (StoredLinks& row : stored) {
    const bool shown = state.Exists(row.key);
    std::erase_if(row.links, [&](const ClusterLink& link) {
      return !shown || !state.Exists({row.key.layer, row.key.head, link.cluster});
    });
    co_fetches.Load(row.key, std::move(row.links), row.own);
  }
}

}  // namespace

absl::StatusOr<LoadedState> BuildState(const std::shared_ptr<FreeMap>& free_map,
                                       StoredSession stored) {
  LoadedState out;
  ExtentTable parents(free_map);
  ExtentTable own(free_map);
  std::vector<SegmentRows> chain;
  std::vector<std::int64_t> next_ids;
  const EntryLayout layout = stored.row.layout;
  for (StoredSegment& segment : stored.chain) {
    const bool open = segment.id == stored.row.segment;
    if (!segment.row.next_cluster_ids.empty()) next_ids = segment.row.next_cluster_ids;
    if (segment.row.has_checkpoint) out.policy_token_count = segment.row.token_count;
    if (open) out.segment_row = segment.row;
    CAIRN_ASSIGN_OR_RETURN(SegmentRows rows, BuildRows(std::move(segment), open ? own : parents));
    chain.push_back(std::move(rows));
  }
  out.log_extents = own.LogExtents();
  out.row = std::move(stored.row);
  out.regions = std::move(stored.regions);
  out.policy = std::move(stored.policy);
  out.tail_tokens = std::move(stored.tail_tokens);
  out.tail_start = stored.tail_start;
  // A new segment goes on with its parent's ids (rule 10).
  out.segment_row.next_cluster_ids = next_ids;
  out.pools = std::make_unique<PoolTable>();
  CAIRN_RETURN_IF_ERROR(AdoptPools(layout, chain.back(), *out.pools));
  out.state = std::make_unique<SessionState>(layout, std::move(chain));
  for (const SegmentRows& rows : out.state->chain()) {
    for (const auto& [key, parts] : rows.parts) {
      out.state->NoteUsedId(key.layer, key.head, key.cluster_id.value());
    }
  }
  for (std::size_t i = 0; i < next_ids.size(); ++i) {
    const auto heads = static_cast<std::size_t>(layout.head_count) + 1;
    const auto head = static_cast<std::int32_t>(i % heads);
    out.state->NoteUsedId(static_cast<std::int32_t>(i / heads),
                          head == layout.head_count ? kAllHeads : head, next_ids[i] - 1);
  }
  CAIRN_RETURN_IF_ERROR(CheckAscending(*out.state));
  CAIRN_RETURN_IF_ERROR(out.state->RecomputeSums());
  LoadLinks(*out.state, std::move(stored.links), out.co_fetches);
  return out;
}

absl::StatusOr<std::vector<std::int32_t>> LoadTokens(MetaReader& reader, SegmentId open_segment,
                                                     std::int64_t token_count, std::int64_t first,
                                                     std::int64_t count) {
  // From the end: each segment of the chain gives the positions from its start up to its child's.
  std::vector<std::int32_t> out;
  std::int64_t end = std::min(token_count, first + count);
  if (first >= end) return out;
  out.resize(static_cast<std::size_t>(end - first));
  for (SegmentId segment = open_segment; segment.value() != 0 && end > first;) {
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow row, LoadSegmentRow(reader, segment));
    for (std::int64_t at = std::max(row.start, first); at < end;) {
      const std::int64_t block = at / kTokenBlockCount;
      CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                             reader.Get(Family::kSegments, SegmentTokensKey(segment, block)));
      if (!bytes) return DataLoss("segment {} lacks token block {}", segment, block);
      CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> tokens, DecodeTokens(*bytes));
      // The first block of a segment begins at the segment's start.
      const std::int64_t begin = std::max(block * kTokenBlockCount, row.start);
      const std::int64_t block_end = std::min((block + 1) * kTokenBlockCount, end);
      if (block_end - begin > static_cast<std::int64_t>(tokens.size())) {
        return DataLoss("segment {} token block {} has {} ids, not {}", segment, block,
                        tokens.size(), block_end - begin);
      }
      for (; at < block_end; ++at) {
        out[static_cast<std::size_t>(at - first)] = tokens[static_cast<std::size_t>(at - begin)];
      }
    }
    end = std::min(end, row.start);
    segment = row.parent;
  }
  return out;
}

absl::StatusOr<PolicyRow> LoadPolicy(MetaReader& reader, SegmentId open_segment) {
  for (SegmentId segment = open_segment; segment.value() != 0;) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                           reader.Get(Family::kSegments, SegmentPolicyKey(segment)));
    if (bytes) {
      absl::StatusOr<PolicyRow> policy = DecodePolicyRow(*bytes);
      // A fork starts with a random state of its own.
      if (policy.ok() && segment != open_segment) policy->random_state.clear();
      return policy;
    }
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow row, LoadSegmentRow(reader, segment));
    segment = row.parent;
  }
  return PolicyRow{};
}

void DeleteSegmentRows(MetaBatch& batch, SegmentId segment) {
  for (const Family family : {Family::kSegments, Family::kClusters, Family::kPools, Family::kRuns,
                              Family::kIndex, Family::kCoretrieval}) {
    batch.DeletePrefix(family, SegmentPrefix(segment));
  }
}

}  // namespace cairn::kv
