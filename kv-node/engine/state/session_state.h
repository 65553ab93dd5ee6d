// SessionState: what an attached session shows, in memory: the rows of its chain of segments,
// pending entries, and count and hash of positions. Pure bookkeeping: no I/O, no metadata store;
// the engine moves bytes and commits what this class names. Its words are in
// docs/architecture.md, "Words", the rules of the store by their numbers in docs/kv-node.md.
//
// Threading:  the engine thread.
// Ownership:  parts that are given out hold their extents; pending entries hold their bytes.
// Invariants: for each (layer, head) `sum` is count and hash of the positions that clusters show
//             and that are evicted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/engine/space/cluster_map.h"
#include "kv-node/engine/state/segment_parts.h"
#include "kv-node/layout/index_run.h"
#include "kv-node/layout/part.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

inline constexpr std::int64_t kNoLimit = kPositionMax + 1;

// The rows of one segment.
struct SegmentRows {
  SegmentId id;
  SegmentId parent;
  std::int64_t start = 0;
  std::int64_t limit = kNoLimit;  // positions below it count; kNoLimit in the open segment
  bool has_checkpoint = false;
  SegmentParts parts;
  std::map<ClusterKey, std::vector<Part>>
      carried;  // the key's id is the buffer's; one record an entry
  std::set<ClusterKey> masks;
  std::map<ClusterKey, Positions> evicted;      // cluster id 0
  std::map<std::int32_t, IndexRun> index_runs;  // by layer
  ClusterMap index;  // rows that changed since, as family `index` has them
};

// Where the index rows of a layer are that one segment adds to those of older ones.
struct IndexSource {
  std::vector<ClusterKey> masks;  // hide rows of older segments
  IndexRun run;
  std::vector<std::pair<ClusterKey, std::string>> changed;  // as family `index` has them
};

// Entries of one Append to one cluster, not on flash yet.
struct PendingChunk {
  Positions positions;
  std::shared_ptr<const std::string> bytes;
};

// A part and how many of its first entries the chain's limit leaves visible. P: Part, or StoredPart
// for who looks at positions only.
template <typename P>
struct Visible {
  P part;
  std::int64_t count = 0;
  bool of_open_segment = false;
};
using VisiblePart = Visible<Part>;

// Count and 64-bit hash sum of a set of positions: equal sums mean equal sets, but for a chance of
// about 2^-64.
struct PositionSum {
  std::int64_t count = 0;
  std::uint64_t hash = 0;
  void Add(const Positions& positions);
  void Add(std::span<const std::int32_t> positions);
  void Remove(const Positions& positions);
  friend bool operator==(const PositionSum&, const PositionSum&) = default;
};

// Adds a part if the segment's limit leaves some of it.
template <typename P>
void AddVisible(P part, const SegmentRows& rows, bool of_open_segment,
                std::vector<Visible<P>>& out) {
  const bool whole = rows.limit == kNoLimit;
  const std::int64_t count = whole ? part.count() : part.positions.CountBelow(rows.limit);
  if (count > 0) out.push_back({std::move(part), count, of_open_segment});
}

template <typename P>
void SortByPosition(std::vector<Visible<P>>& parts) {
  std::sort(parts.begin(), parts.end(), [](const Visible<P>& a, const Visible<P>& b) {
    return a.part.positions.first() < b.part.positions.first();
  });
}

class SessionState {
 public:
  SessionState(const EntryLayout& layout, std::vector<SegmentRows> chain);

  const EntryLayout& layout() const { return layout_; }
  std::int64_t EntryBytes(const ClusterKey& key) const { return layout_.EntryBytes(key.head); }
  SegmentRows& open() { return chain_.back(); }
  const SegmentRows& open() const { return chain_.back(); }
  const std::vector<SegmentRows>& chain() const { return chain_; }
  // The open segment becomes a parent that counts up to `limit`; the session goes on in `next`.
  void Roll(std::int64_t limit, SegmentId next);

  // ---- views of the chain ----
  std::vector<VisiblePart> PartsOf(const ClusterKey& key) const;
  std::vector<Visible<StoredPart>> StoredPartsOf(const ClusterKey& key) const;
  // The same in place of what `parts` holds. With kFirstAndCount for who looks at bytes only, many
  // times: parts of segments that count up to a limit have all positions nevertheless.
  void FindStoredParts(const ClusterKey& key, PositionDetail detail,
                       std::vector<Visible<StoredPart>>& parts) const;
  Positions PositionsOf(const ClusterKey& key) const;  // with pending ones
  bool Exists(const ClusterKey& key) const;
  std::vector<ClusterInfo> ClustersOf(std::int32_t layer) const;
  // From the root; the last one is of the open segment.
  std::vector<IndexSource> IndexSourcesOf(std::int32_t layer) const;
  // Carried records that count: those of the last segment with a checkpoint, below its limit (rule
  // 1).
  std::map<ClusterKey, std::vector<Part>> CarriedOf(std::int32_t layer) const;

  // ---- pending entries ----
  const std::map<ClusterKey, std::vector<PendingChunk>>& pending() const { return pending_; }
  std::map<ClusterKey, std::vector<PendingChunk>> TakePending();
  // Of a Replace's child, whose positions ApplyReplace has counted already.
  void AddPending(const ClusterKey& key, PendingChunk chunk);
  // The first `count` entries of a cluster's pending ones leave.
  void DropPending(const ClusterKey& key, std::int64_t count);
  std::int64_t PendingCount(const ClusterKey& key) const;
  std::int64_t pending_bytes() const { return pending_bytes_; }

  // ---- changes; the checks answer INVALID_ARGUMENT, the changes require that their check passed
  // ----
  absl::Status CheckAppend(const ClusterKey& key, const Positions& positions) const;
  void Append(const ClusterKey& key, ClusterEntries entries);
  // Checks ids and positions of a Replace before its bytes are read.
  absl::Status CheckReplace(const Replace& op) const;
  // The rows of a checked Replace: parents go (masked where older segments hold them), evicted
  // positions are noted. Dropped parts are returned, so that their extents can be released when a
  // commit no longer names them. Children are added with PutParts or AddPending by the caller.
  std::vector<Part> ApplyReplace(const Replace& op);
  // Positions of no cluster are given up. What clusters or carried rows show besides is found at
  // the checkpoint, by the position rule.
  absl::Status CheckEvict(const Evict& op) const;
  void ApplyEvict(const Evict& op);
  // An index row belongs to a cluster that this chain shows.
  absl::Status CheckIndexRows(const cairn::PutIndexRows& op) const;
  void PutIndexRows(std::int32_t layer, const std::vector<IndexRow>& rows);
  // All rows of the open segment's layer are in the run now; one without parts: there are none.
  void SetIndexRun(std::int32_t layer, IndexRun run);

  void PutParts(const ClusterKey& key, const std::vector<Part>& parts);  // none: the row goes
  // All carried rows of the open segment, in place of those that it had.
  void PutCarried(std::map<ClusterKey, std::vector<Part>> carried);

  // Rows of the open segment that differ from the last cut; cleared by TakeDirty.
  struct Dirty {
    std::set<ClusterKey> parts, masks, evicted, index;
    std::set<ClusterKey> carried;       // those that were replaced: the others count as changed
    std::set<std::int32_t> index_runs;  // by layer
  };
  Dirty TakeDirty();

  // ---- the position rule ----
  // FAILED_PRECONDITION unless clusters, evicted and `carried` hold each of 0 .. token_count - 1
  // exactly once for every layer and head.
  absl::Status CheckPositions(std::int64_t token_count,
                              const std::map<ClusterKey, CarriedEntries>& carried) const;
  // Whether the sums that CheckPositions trusts are what a walk over all that is shown gives.
  bool SumsAreRight() const;
  // Recomputes the sums by walking all rows. DATA_LOSS if a position is shown twice, or positions
  // do not ascend over a cluster's parts (rule 9). REQUIRES: nothing is pending.
  absl::Status RecomputeSums(std::int64_t thread_count = 1);

  // The largest cluster id that (layer, head) has used (rule 10).
  std::int64_t UsedIdMax(std::int32_t layer, std::int32_t head) const;
  // INVALID_ARGUMENT unless each of a checkpoint's next ids, layer-major with head -1 last, is
  // above every id that was used: a lower one would be given out again.
  absl::Status CheckNextIds(const std::vector<std::int64_t>& next_cluster_ids) const;
  void NoteUsedId(std::int32_t layer, std::int32_t head, std::int64_t id);

  std::int64_t row_bytes() const;

 private:
  // In ascending order of keys.
  void ForEachCluster(std::int32_t layer, const std::function<void(const ClusterKey&)>& fn) const;
  using Seen = std::vector<std::int32_t>;  // positions that a head shows
  // `seen` is by head. Of a layer's clusters, without what is pending.
  absl::Status SumStored(std::int32_t layer, std::vector<Seen>& seen);
  absl::Status SumCluster(const ClusterKey& key, std::vector<Seen>& seen);
  void SumPositions(const ClusterKey& key, const Seen& positions, std::vector<Seen>& seen);
  absl::Status RecomputeSumsOf(std::int32_t layer, std::vector<Seen>& seen);
  template <typename Fn>
  void ForEachHead(std::int32_t head, Fn&& fn) const {
    if (head != kAllHeads) return fn(head);
    for (std::int32_t h = 0; h < layout_.head_count; ++h) fn(h);
  }
  // In `sums_`.
  std::size_t SumIndex(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(layout_.head_count) +
           static_cast<std::size_t>(head);
  }
  void NoteEvicted(std::int32_t layer, std::int32_t head, const Positions& positions);
  void RemoveIndexRow(const ClusterKey& key);
  // To those of the heads that the key stands for.
  void AddTo(std::vector<PositionSum>& sums, const ClusterKey& key,
             const Positions& positions) const;
  void RemoveFromSums(const ClusterKey& key, const Positions& positions);

  const EntryLayout layout_;
  std::vector<SegmentRows> chain_;  // from the root; the last one is open
  std::map<ClusterKey, std::vector<PendingChunk>> pending_;
  std::int64_t pending_bytes_ = 0;
  std::vector<PositionSum> sums_;           // (layer, head)
  std::map<LayerHead, std::int64_t> used_;  // the largest id
  Dirty dirty_;
};

}  // namespace cairn::kv
