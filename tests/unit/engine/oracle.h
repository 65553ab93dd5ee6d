// What a session must show, kept beside the store by whoever drives it, and random operations that
// change both alike.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/messages.h"

namespace cairn::kv {

// What a session must show: the same for the compute node that sent the operations and for the
// judge.
struct Oracle {
  using LayerHead = std::pair<std::int32_t, std::int32_t>;
  std::int64_t token_count = 0;
  std::int64_t window_start = 0;
  std::vector<std::int64_t> truth;  // position -> a number that its entries are made from
  std::map<LayerHead, std::map<std::int64_t, std::vector<std::int64_t>>> clusters;
  // By cluster: positions that are carried until the cluster's next Replace takes them in.
  std::map<LayerHead, std::map<std::int64_t, std::vector<std::int64_t>>> buffers;
  std::map<LayerHead, std::int64_t> next_id;
  // By layer, then head and cluster: also of clusters that a fork cut away.
  std::map<std::int32_t, std::map<std::pair<std::int32_t, std::int64_t>, IndexRow>> index;
  void CutTo(std::int64_t limit);
  // Positions that are in no cluster yet.
  Positions Window() const { return Positions::Range(window_start, token_count - window_start); }
  // Those of the window, and those of a buffer in any layer and head.
  std::set<std::int64_t> CarriedPositions() const;
};

// A compute node's operations, drawn at random. Each changes the oracle as it changes the session
// that it is sent to.
class RandomOperations {
 public:
  using Random = std::function<std::int64_t(std::int64_t below)>;

  RandomOperations(const EntryLayout& layout, Random random);

  // One token more; the entries that leave the window for it go to clusters, one in `fresh_one_in`
  // to a new one, or to the buffer of a large cluster. `truth`: the token; none: a new one.
  std::vector<Append> Decode(Oracle& oracle, std::int64_t fresh_one_in,
                             std::optional<std::int64_t> truth = std::nullopt);
  // A cluster of a random layer in each of its heads, where one is large enough.
  std::vector<Replace> Split(Oracle& oracle);
  // Gives up a cluster's entries, or some of what waits in a buffer, or either.
  std::optional<Replace> EvictCluster(Oracle& oracle);
  std::optional<cairn::Evict> EvictBuffered(Oracle& oracle);
  std::optional<ChangingOperation> Evict(Oracle& oracle);
  // Two or three clusters of a random layer become one, in each of its heads that has as many.
  std::vector<Replace> Merge(Oracle& oracle);
  // A cluster's entries are brought again: `all` of them, or some.
  Replace Repair(Oracle& oracle, const Oracle::LayerHead& layer_head, std::int64_t cluster,
                 bool all);
  // The same with a random cluster, mostly not all.
  std::optional<Replace> Repair(Oracle& oracle);
  // The same operation for parents of which the store has lost entries: it brings all of them.
  Replace WithAllBrought(const Oracle& oracle, Replace op) const;
  // Some clusters of a layer that are fetched together, also one that does not exist yet.
  Fetch Relate(const Oracle& oracle);
  // Index rows for some of a layer's clusters.
  PutIndexRows PutRows(Oracle& oracle);
  // The window and the buffers, for a checkpoint. Entries with a record in the open segment are
  // mostly not brought.
  std::vector<StageCarried> StageAllCarried(const Oracle& oracle,
                                            const std::set<std::int64_t>& recorded);
  // `stored_count`: tokens that the session has stored.
  Checkpoint TakeCheckpoint(const Oracle& oracle, std::int64_t stored_count, bool seal) const;

  // Heads that hold clusters of their own in a layer: layer 1 has clusters of all heads.
  static std::vector<std::int32_t> HeadsOf(std::int32_t layer);
  std::string Entries(const Oracle& oracle, std::int32_t layer, std::int32_t head,
                      const Positions& positions) const;
  // Whether these are the carried entries that the layer must show.
  bool AreCarriedOf(const Oracle& oracle, std::int32_t layer,
                    const std::vector<CarriedEntries>& carried) const;
  // Whether these are the index rows that the layer must show.
  static bool AreRowsOf(const Oracle& oracle, std::int32_t layer,
                        const std::vector<IndexRow>& rows);
  // The same where some may be lost: all that are there.
  static bool AreSomeRowsOf(const Oracle& oracle, std::int32_t layer,
                            const std::vector<IndexRow>& rows);
  // Whether FetchIndex's answer has them: of two records of a cluster the later, and whatever there
  // is of clusters that are no more.
  static bool HasRecordsOf(const Oracle& oracle, std::int32_t layer, const FetchReply& reply);
  // What the answer to FetchIndex of what is visible shows.
  static std::vector<IndexRow> VisibleRowsOf(const FetchReply& reply);
  const EntryLayout& layout() const { return layout_; }

 private:
  using CarriedOfLayer = std::map<std::pair<std::int32_t, std::int64_t>, Positions>;

  // None: the entry goes to a buffer.
  std::optional<Append> Assign(Oracle& oracle, std::int32_t layer, std::int32_t head,
                               std::int64_t position, std::int64_t fresh_one_in);
  // Makes a cluster a parent: the oracle forgets it, and what its buffer holds is brought. Returns
  // all its positions, sorted.
  std::vector<std::int64_t> TakeParent(Oracle& oracle, std::int64_t id, Replace& op) const;
  void AddChild(Oracle& oracle, std::vector<std::int64_t> positions, Replace& op) const;
  // By head and buffer.
  static CarriedOfLayer CarriedOf(const Oracle& oracle, std::int32_t layer);

  const EntryLayout layout_;
  const Random random_;
  std::int64_t next_truth_ = 1;
};

}  // namespace cairn::kv
