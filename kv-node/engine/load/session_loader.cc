#include "kv-node/engine/load/session_loader.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <thread>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/base/parallel.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

constexpr int kChainLengthMax = 100000;  // a longer one is a loop
// Threads that load the rows of one session, at most, and clusters that are worth one more.
constexpr std::int64_t kLoadThreadsMax = 4;
constexpr std::int64_t kClustersPerThread = 4096;

template <typename T>
void MoveBehind(std::vector<T>& out, std::vector<T>& from) {
  out.insert(out.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// By how many ids were given, which are as many clusters at most.
std::int64_t LoadThreads(const SegmentRow& row) {
  const std::vector<std::int64_t>& ids = row.next_cluster_ids;
  const std::int64_t count = std::accumulate(ids.begin(), ids.end(), std::int64_t{0});
  const std::int64_t wanted = std::min(count / kClustersPerThread, kLoadThreadsMax);
  if (wanted <= 1) return 1;
  return std::clamp(static_cast<std::int64_t>(std::thread::hardware_concurrency()), std::int64_t{1},
                    wanted);
}

absl::Status LoadParts(const StoredSegment& segment, const ParsedClusterRowKey& key,
                       std::string_view value, StoredClusterRows& out) {
  const std::int64_t entry_bytes = segment.row.layout.EntryBytes(key.key.head);
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredPart> parts, DecodeParts(value, entry_bytes));
  if (key.kind == ClusterRowKind::kCarried) {
    for (const StoredPart& part : parts) out.extents.Add(part);
    out.carried.emplace_back(key.key, std::move(parts));
    return absl::OkStatus();
  }
  if (key.key.cluster_id.value() < 1 || parts.empty()) {
    return DataLoss("segment {} layer {} head {} has a row of cluster {} with {} parts", segment.id,
                    key.key.layer, key.key.head, key.key.cluster_id, parts.size());
  }
  for (const StoredPart& part : parts) out.extents.Add(part, part.count() * entry_bytes);
  out.parts.Put(key.key, parts);
  return absl::OkStatus();
}

// Rows with keys of [first, end).
absl::Status LoadClusterRows(MetaReader& reader, const StoredSegment& segment,
                             std::string_view first, std::string_view end, StoredClusterRows& out) {
  return reader.ScanRange(
      Family::kClusters, first, end,
      [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const ParsedClusterRowKey key, ParseClusterRowKey(key_bytes));
        const EntryLayout& layout = segment.row.layout;
        if (key.key.layer >= layout.layer_count || key.key.head >= layout.head_count) {
          return DataLoss("segment {} has a row of layer {} head {}, which it does not have",
                          segment.id, key.key.layer, key.key.head);
        }
        switch (key.kind) {
          case ClusterRowKind::kMask:
            out.masks.push_back(key.key);
            return absl::OkStatus();
          case ClusterRowKind::kEvicted: {
            CAIRN_ASSIGN_OR_RETURN(Positions positions, DecodePositions(value));
            out.evicted.emplace_back(key.key, std::move(positions));
            return absl::OkStatus();
          }
          case ClusterRowKind::kParts:
          case ClusterRowKind::kCarried:
            return LoadParts(segment, key, value, out);
        }
        return absl::OkStatus();
      });
}

// Of all layers, some of them at a time. Rows of layers that the segment does not have are found by
// who loads the last.
absl::Status LoadClusterRows(MetaReader& reader, StoredSegment& segment) {
  const std::int64_t layer_count = segment.row.layout.layer_count;
  const auto key_of = [&](std::int64_t layer) {
    if (layer == 0) return SegmentPrefix(segment.id);
    if (layer == layer_count) return PrefixEnd(SegmentPrefix(segment.id));
    return SegmentLayerPrefix(segment.id, static_cast<std::int32_t>(layer));
  };
  std::vector<StoredClusterRows> by_first_layer(static_cast<std::size_t>(layer_count));
  CAIRN_RETURN_IF_ERROR(ForEachRange(
      "kv-open", layer_count, LoadThreads(segment.row), [&](std::int64_t begin, std::int64_t end) {
        return LoadClusterRows(reader, segment, key_of(begin), key_of(end),
                               by_first_layer[static_cast<std::size_t>(begin)]);
      }));
  for (StoredClusterRows& rows : by_first_layer) segment.clusters.Append(std::move(rows));
  return absl::OkStatus();
}

absl::Status LoadIndexRows(MetaReader& reader, StoredSegment& segment) {
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kRuns, SegmentPrefix(segment.id),
      [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const std::int32_t layer, ParseIndexRunKey(key));
        CAIRN_ASSIGN_OR_RETURN(StoredIndexRun run, DecodeIndexRun(value));
        if (layer >= segment.row.layout.layer_count) {
          return DataLoss("segment {} has an index run of layer {}, which it does not have",
                          segment.id, layer);
        }
        segment.index_runs.emplace_back(layer, std::move(run));
        return absl::OkStatus();
      }));
  return reader.Scan(Family::kIndex, SegmentPrefix(segment.id),
                     [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                       CAIRN_ASSIGN_OR_RETURN(const ClusterKey key, ParseIndexRowKey(key_bytes));
                       CAIRN_RETURN_IF_ERROR(CheckIndexChange(key, value));
                       segment.index.Put(key, value);
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

// Checks what the rows name. The ends of pools that they leave free are known from the rows alone:
// allocation records have whole pools. `pools` is null for a sealed segment.
absl::Status AddExtents(const StoredSegment& segment, ExtentTable& extents, PoolTable* pools) {
  CAIRN_RETURN_IF_ERROR(extents.Add(segment.clusters.extents));
  for (const auto& [layer, run] : segment.index_runs) {
    if (run.parts.empty()) continue;
    CAIRN_RETURN_IF_ERROR(extents.AddRunOfOne(run.parts.front()));
  }
  absl::Status status;
  if (pools == nullptr) return status;
  segment.clusters.parts.ForEachPart([&](const ClusterKey& key, const StoredPart& part) {
    if (part.kind != ExtentKind::kPool || !status.ok()) return;
    status = pools->Adopt({key.layer, key.head}, segment.row.layout.EntryBytes(key.head), part);
  });
  return status;
}

IndexRun WithExtent(StoredIndexRun stored, const ExtentTable& extents) {
  IndexRun run;
  run.record_bytes = stored.record_bytes;
  run.hides_older = stored.hides_older;
  if (stored.parts.empty()) return run;
  const ExtentRef extent = extents.Committed(stored.parts.front());
  for (StoredPart& part : stored.parts) run.parts.emplace_back(std::move(part), extent);
  return run;
}

absl::StatusOr<SegmentRows> BuildRows(StoredSegment stored, ExtentTable& extents,
                                      const std::shared_ptr<PoolTable>& pools) {
  const EntryLayout& layout = stored.row.layout;
  CAIRN_RETURN_IF_ERROR(AddExtents(stored, extents, pools.get()));
  SegmentRows rows;
  rows.id = stored.id;
  rows.parent = stored.row.parent;
  rows.start = stored.row.start;
  rows.limit = stored.limit;
  rows.has_checkpoint = stored.row.has_checkpoint;
  rows.parts = SegmentParts(layout, pools, std::move(stored.clusters.parts),
                            extents.LogRunsOf(stored.clusters.extents));
  rows.masks.insert(stored.clusters.masks.begin(), stored.clusters.masks.end());
  for (auto& [key, positions] : stored.clusters.evicted) {
    rows.evicted.emplace(key, std::move(positions));
  }
  for (auto& [key, parts] : stored.clusters.carried) {
    std::vector<Part>& records = rows.carried[key];
    for (StoredPart& part : parts) {
      const auto run = extents.runs().find(part.first_page);
      if (run == extents.runs().end()) {
        return DataLoss("segment {} has a carried entry outside of a log run", stored.id);
      }
      records.emplace_back(std::move(part), run->second);
    }
  }
  rows.index = std::move(stored.index);
  for (auto& [layer, run] : stored.index_runs) {
    rows.index_runs.emplace(layer, WithExtent(std::move(run), extents));
  }
  return rows;
}

absl::Status NoSession(SessionId session) {
  return NotFound("session {} is not in the store", session);
}

absl::Status NoSegment(SegmentId segment) {
  return NotFound("segment {} is not in the store", segment);
}

}  // namespace

void StoredClusterRows::Append(StoredClusterRows later) {
  parts.Append(std::move(later.parts));
  extents.Append(std::move(later.extents));
  MoveBehind(carried, later.carried);
  MoveBehind(evicted, later.evicted);
  MoveBehind(masks, later.masks);
}

absl::Status CheckMeant(AppId app, const SessionRef& session, const SessionRow& row) {
  if (row.app != app && !FailPoint("another app's sessions are there")) {
    return NoSession(session.id);
  }
  if (IsMeant(session, row.uid)) return absl::OkStatus();
  return FailedPrecondition(
      "session {} of this store is another one than the one that is meant: the store was "
      "exchanged, "
      "or an older copy of it was put back",
      session.id);
}

absl::Status CheckApp(AppId app, SegmentId segment, const SegmentRow& row) {
  return row.app == app || FailPoint("forks stand on other apps' segments") ? absl::OkStatus()
                                                                            : NoSegment(segment);
}

absl::StatusOr<SessionRow> LoadSessionRow(MetaReader& reader, SessionId session) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                         reader.Get(Family::kSessions, SessionKeyBytes(session)));
  if (!bytes) return NoSession(session);
  absl::StatusOr<SessionRow> row = DecodeSessionRow(*bytes);
  if (!row.ok()) return Annotate(row.status(), fmt::format("session {}", session));
  return row;
}

absl::StatusOr<SessionRow> LoadSessionRow(MetaReader& reader, AppId app,
                                          const SessionRef& session) {
  CAIRN_ASSIGN_OR_RETURN(SessionRow row, LoadSessionRow(reader, session.id));
  CAIRN_RETURN_IF_ERROR(CheckMeant(app, session, row));
  return row;
}

absl::StatusOr<SegmentRow> LoadSegmentRow(MetaReader& reader, SegmentId segment) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                         reader.Get(Family::kSegments, SegmentHeadKey(segment)));
  if (!bytes) return NoSegment(segment);
  absl::StatusOr<SegmentRow> row = DecodeSegmentRow(*bytes);
  if (!row.ok()) return Annotate(row.status(), fmt::format("segment {}", segment));
  return row;
}

absl::StatusOr<StoredSession> LoadSession(MetaReader& reader, SessionId session) {
  StoredSession out;
  CAIRN_ASSIGN_OR_RETURN(out.row, LoadSessionRow(reader, session));
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
  CAIRN_ASSIGN_OR_RETURN(out.regions, LoadRegions(reader, out.row.segment));
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
  static_cast<SessionRows&>(out) = static_cast<SessionRows&&>(stored);
  ExtentTable parents(free_map);
  ExtentTable own(free_map);
  out.pools = std::make_shared<PoolTable>(free_map);
  std::vector<SegmentRows> chain;
  std::vector<std::int64_t> next_ids;
  const EntryLayout layout = out.row.layout;
  for (StoredSegment& segment : stored.chain) {
    const bool open = segment.id == out.row.segment;
    if (!segment.row.next_cluster_ids.empty()) next_ids = segment.row.next_cluster_ids;
    if (segment.row.has_checkpoint) out.policy_token_count = segment.row.token_count;
    if (open) out.segment_row = segment.row;
    CAIRN_ASSIGN_OR_RETURN(SegmentRows rows, BuildRows(std::move(segment), open ? own : parents,
                                                       open ? out.pools : nullptr));
    chain.push_back(std::move(rows));
  }
  CAIRN_RETURN_IF_ERROR(parents.Check());
  CAIRN_RETURN_IF_ERROR(own.Check());
  out.log_extents = own.LogExtents();
  // A new segment goes on with its parent's ids (rule 10).
  out.segment_row.next_cluster_ids = next_ids;
  out.state = std::make_unique<SessionState>(layout, std::move(chain));
  for (const SegmentRows& rows : out.state->chain()) {
    rows.parts.rows().ForEachLastKey([&](const ClusterKey& key) {
      out.state->NoteUsedId(key.layer, key.head, key.cluster_id.value());
    });
  }
  for (std::size_t i = 0; i < next_ids.size(); ++i) {
    const auto heads = static_cast<std::size_t>(layout.head_count) + 1;
    const auto head = static_cast<std::int32_t>(i % heads);
    out.state->NoteUsedId(
        static_cast<std::int32_t>(i / heads), head == layout.head_count ? kAllHeads : head,
        FailPoint("ids that are not to be seen may be used again (rule 10)") ? 0 : next_ids[i] - 1);
  }
  CAIRN_RETURN_IF_ERROR(out.state->RecomputeSums(LoadThreads(out.segment_row)));
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
