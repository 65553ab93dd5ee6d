// Reads a session's rows from the metadata store, and makes a session's state of them.
//
// Threading:  both run on the metadata thread, with others of their own for sessions of many
//             clusters, and touch nothing else: the rows of 100,000 clusters take tenths of a
//             second, in which the engine thread serves others.
// Errors:     NOT_FOUND no such session; DATA_LOSS a row is damaged or rows contradict each other.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kv-node/engine/load/named_extents.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/engine/space/pool_table.h"
#include "kv-node/engine/state/session_state.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

// Rows of a segment's clusters, or of some of its layers.
struct StoredClusterRows {
  PartRows parts;
  NamedExtents extents;  // of parts, and of what is carried
  std::vector<std::pair<ClusterKey, std::vector<StoredPart>>> carried;
  std::vector<std::pair<ClusterKey, Positions>> evicted;
  std::vector<ClusterKey> masks;

  // Of later layers.
  void Append(StoredClusterRows later);
};

// One segment's rows as they are stored.
struct StoredSegment {
  SegmentId id;
  SegmentRow row;
  std::int64_t limit = kNoLimit;
  StoredClusterRows clusters;
  ClusterMap index;
  std::vector<std::pair<std::int32_t, StoredIndexRun>> index_runs;  // by layer
};

// A stored row about neighbours. One that could not be read has no links: it goes.
struct StoredLinks {
  ClusterKey key;
  std::vector<ClusterLink> links;
  bool own = false;  // of the open segment
};

// What is stored of a session beside what its segments hold.
struct SessionRows {
  SessionRow row;
  RegionBitsMap regions;  // of the open segment
  PolicyRow policy;
  // Token ids of the open segment from its last partly filled block on.
  std::vector<std::int32_t> tail_tokens;
  std::int64_t tail_start = 0;
};

struct StoredSession : SessionRows {
  std::vector<StoredSegment> chain;  // from the root; the last one is open
  std::vector<StoredLinks> links;    // of the newest segments first, kCoFetchClustersMax at most
};

absl::StatusOr<StoredSession> LoadSession(MetaReader& reader, SessionId session);

// What the stored rows name is checked: that it lies in the extent file, that two rows do not mean
// two extents by one page, and that parts in pools of the open segment do not overlap.
struct LoadedState : SessionRows {
  std::unique_ptr<SessionState> state;
  std::shared_ptr<PoolTable> pools;  // of the open segment
  CoFetches co_fetches;
  std::vector<ExtentRef> log_extents;  // log runs of the open segment
  SegmentRow segment_row;              // of the open segment
  std::int64_t policy_token_count = 0;
};
absl::StatusOr<LoadedState> BuildState(const std::shared_ptr<FreeMap>& free_map,
                                       StoredSession stored);

// Token ids [first, first + count) of a chain, or fewer at its end.
absl::StatusOr<std::vector<std::int32_t>> LoadTokens(MetaReader& reader, SegmentId open_segment,
                                                     std::int64_t token_count, std::int64_t first,
                                                     std::int64_t count);

// The policy's row that counts for a chain: of its last segment that has one.
absl::StatusOr<PolicyRow> LoadPolicy(MetaReader& reader, SegmentId open_segment);

absl::StatusOr<SegmentRow> LoadSegmentRow(MetaReader& reader, SegmentId segment);
// NOT_FOUND if there is no such session.
absl::StatusOr<SessionRow> LoadSessionRow(MetaReader& reader, SessionId session);
// NOT_FOUND if the session is another app's; FAILED_PRECONDITION if the row is of another session,
// which has the same number.
absl::Status CheckMeant(AppId app, const SessionRef& session, const SessionRow& row);
// Both. What else a session has is looked at behind it: damage of another app's tells nobody that
// it is there.
absl::StatusOr<SessionRow> LoadSessionRow(MetaReader& reader, AppId app, const SessionRef& session);
// NOT_FOUND if the segment is another app's.
absl::Status CheckApp(AppId app, SegmentId segment, const SegmentRow& row);

// Adds the deletion of all rows of a segment, in every family.
void DeleteSegmentRows(MetaBatch& batch, SegmentId segment);

}  // namespace cairn::kv
