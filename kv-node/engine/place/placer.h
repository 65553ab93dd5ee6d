// Placer places the entries of a session's clusters: they move from pending and log parts into
// pools. Whole log parts go, oldest entries first; only a cluster's last placed part grows, into
// the room that the part at the other end leaves. What does not fit there, or whose page fails the
// check of either part, becomes one new part: at the place that was planned for it with others, at
// a free end beside another cluster of the (layer, head), if possible one that it is fetched with,
// else in a fresh pool. A part never exceeds the largest pool, so a cluster that outgrows it has
// several. Rule 6: a page has one writer at a time, from the read before its write to the write's
// end; both parts' bytes in it are checked and written again.
//
// Threading:  the engine thread.
// Errors:     a placing for which flash has no room changes nothing, and error() says so.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/engine/space/pool_table.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

class Placer {
 public:
  // `host`, `co_fetches` and `writes` outlive it.
  Placer(SessionHost& host, const CoFetches& co_fetches, std::shared_ptr<PoolTable> pools,
         SessionWrites& writes);

  PoolTable& pools() { return *pools_; }
  const PoolTable& pools() const { return *pools_; }

  // Begins to place a cluster's log parts and pending entries. False if it cannot be done now.
  bool Start(const ClusterKey& key);
  // Places the fullest of the clusters that have enough for it, or fill a page, until half of what
  // may be pending is, as far as jobs can start.
  void PlaceForRoom();
  // There is room: what PlaceForRoom could not place is tried again when there is none.
  void NoteRoom() { tried_for_room_.clear(); }
  // Starts one placing if a cluster has enough unplaced entries. Returns whether it did.
  bool PlaceAtIdle();
  // The cluster's unplaced entries have changed.
  void NoteUnplaced(const ClusterKey& key);
  // Parts that no row names any more.
  void NoteDropped(const std::vector<Part>& parts);
  // Places that were kept for clusters are free for others.
  void ForgetPlans() { planned_.clear(); }

  bool is_placing() const { return !placing_.empty(); }
  // A placing that would make room waits for a write to end.
  bool waits() const { return waits_; }
  // Why the last placing or spill could not begin: flash is full.
  const absl::Status& error() const { return error_; }
  void SetError(absl::Status error) { error_ = std::move(error); }

  // What a cluster is placed by: none with co_retrieval switched off.
  std::span<const ClusterLink> LinksOf(const ClusterKey& key) const;
  // A fresh pool with room for `times` as many bytes, as far as the largest has it; on nearly full
  // flash one that just holds them.
  absl::StatusOr<ExtentRef> AllocatePool(std::int64_t bytes, std::int64_t times) const;
  std::int64_t TimesForOnePart(std::int64_t entry_count) const;

 private:
  struct Job;
  // A place that is kept for a cluster whose first part in a pool is to come.
  struct PlannedEnd {
    ExtentRef extent;
    Direction direction = Direction::kUp;
    std::shared_ptr<void> kept;
  };

  // Takes what is to be placed into the job. False if there is nothing.
  bool TakeEntries(Job& job) const;
  static void TakePendingChunks(const std::vector<PendingChunk>& chunks, std::int64_t entry_bytes,
                                std::int64_t room_max, Job& job);
  // Takes the place that was kept for the cluster if it is still right. False: it is written now.
  bool TakePlanned(Job& job, std::int64_t new_bytes);
  // Where they go. False: later, because the pool is being written.
  bool ChoosePlace(Job& job);
  void Finish(const std::shared_ptr<Job>& job, const PageSet& pages);
  void WritePlaced(const std::shared_ptr<Job>& job, const PageSet& pages);
  std::int64_t UnplacedCount(const ClusterKey& key) const;
  PoolTable::WriteCheck WriteCheck() const {
    return [this](PageIndex page) { return context_.io->IsBeingWritten(page); };
  }

  // ---- placer_together.cc ----
  // Places beside the clusters that are fetched together with this one, strongest first.
  std::vector<PoolTable::Place> RelatedPlaces(const ClusterKey& key) const;
  // Whether the cluster has a part in a pool of the open segment.
  bool HasPoolPart(const ClusterKey& key) const;
  // Whether a place for its first part in a pool should be chosen together with others'.
  bool WantsPlan(const ClusterKey& key) const;
  // Chooses places for those of the candidates that want it and are linked to each other. Returns
  // them in the order of their places.
  std::vector<ClusterKey> PlanTogether(LayerHead owner, const std::vector<ClusterKey>& candidates);
  void KeepPools(LayerHead owner, std::span<const ClusterId> run,
                 const std::map<ClusterId, std::int64_t>& bytes_of);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  const CoFetches& co_fetches_;
  const std::shared_ptr<PoolTable> pools_;  // of the open segment
  SessionWrites& writes_;
  std::map<ClusterKey, PlannedEnd> planned_;  // until the next cut or Replace at most
  std::set<ClusterKey> placing_;
  std::set<ClusterKey> idle_candidates_;  // those with place_entries_min unplaced entries or more
  // Since the table was full, so that one that cannot be placed (flash is full, its record is
  // damaged) is not tried for ever.
  std::set<ClusterKey> tried_for_room_;
  bool waits_ = false;
  absl::Status error_;
};

}  // namespace cairn::kv
