// Defragmenter places the clusters of sealed segments again: in packed runs, many to a page, all
// entries of a cluster in one part, in the order of their links. A pool keeps room for a cluster to
// grow; in a sealed segment none does. docs/kv-node.md, "Sealed segments".
//
// It moves a few pages at a time, while the engine has nothing else to do and no attached session
// has the segment in its chain: reads and checks the parts, writes them as new ones, flushes, and
// commits rows and allocation records in one batch; then the old pages are free. So a crash finds
// the old rows with their pages or the new ones with theirs. A cluster that fails a check stays as
// it is.
//
// Threading:  the engine thread.
// Limits:     kDefragmentPagesMax pages that are read at a time, or one cluster's; the rows of one
//             layer, packed.
// Errors:     what goes wrong ends the work on a segment until the next start, and is logged.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv-node/engine/defragment/sealed_rows.h"
#include "kv-node/engine/engine_context.h"

namespace cairn::kv {

inline constexpr std::int64_t kDefragmentPagesMax = 256;

class Defragmenter {
 public:
  // What the engine knows of its sessions.
  struct Sessions {
    // Whether one is on its way to be attached: whose rows it has read is not known yet.
    std::function<bool()> is_opening;
    // Whether one that is attached, or whose last I/O is in flight, has the segment in its chain.
    std::function<bool(SegmentId)> is_attached;
    // Runs the task when no session is being deleted or forked, and keeps that so until the task
    // calls its argument.
    std::function<void(std::function<void(std::function<void()>)>)> with_tree_lock;
  };
  Defragmenter(EngineContext& context, Sessions sessions)
      : context_(context), sessions_(std::move(sessions)) {}

  // A segment was sealed, and that is committed.
  void NoteSealed(SegmentId segment) { waiting_.push_back(segment); }
  // Begins the next step, if there is one. For when nothing else is to be done. Returns whether it
  // did.
  bool Step();
  // Whether a step is under way: it calls back.
  bool active() const { return active_; }

 private:
  // Clusters that are placed again together.
  struct Unit;
  using UnitRef = std::shared_ptr<Unit>;

  // Each begins something and goes on with `next` when it has ended well; else it gives up.
  template <typename T>
  void LoadThen(std::function<absl::StatusOr<T>(MetaReader&)> read, std::function<void(T)> next);
  PageIo::WriteDone Then(std::function<void()> next);
  bool LookAtNextSegment();
  void StartLayer();
  void StartUnit();
  void WriteUnit(const UnitRef& unit, const PageSet& pages);
  absl::Status MakeRun(Unit& unit, const PageSet& pages);
  void FlushUnit(const UnitRef& unit);
  void LockUnit(const UnitRef& unit);
  void CommitUnit(const UnitRef& unit, const std::function<void()>& release);
  // Pages that no row names once the unit's rows are committed.
  std::vector<FreeMap::Range> TakeUnnamed(const Unit& unit);
  void PutRegions(MetaBatch& batch, const Unit& unit, const std::vector<FreeMap::Range>& unnamed);
  void GiveUp(const absl::Status& why);
  void EndSegment() {
    segment_.reset();
    layer_.reset();
  }

  EngineContext& context_;
  const Sessions sessions_;
  bool listed_ = false;  // segments that were sealed before the start are among waiting_
  bool active_ = false;
  std::deque<SegmentId> waiting_;
  std::optional<SealedRows> segment_;
  std::optional<SealedLayer> layer_;
  std::size_t next_ = 0;          // in layer_->order
  std::int64_t moved_bytes_ = 0;  // of this segment
};

}  // namespace cairn::kv
