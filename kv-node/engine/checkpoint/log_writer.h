// LogWriter writes log runs: the records of a checkpoint, or of a spill, when the table of pending
// entries is full ahead of it. One run where flash has room for it in one piece; else several, with
// records cut at their ends.
//
// Threading:  the engine thread.
// Errors:     RESOURCE_EXHAUSTED flash is full: nothing has changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kv-node/engine/checkpoint/log_plan.h"
#include "kv-node/engine/place/placer.h"
#include "kv-node/engine/state/segment_space.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

class LogWriter {
 public:
  // All outlive it.
  LogWriter(SessionHost& host, Placer& placer, SegmentSpace& space, SessionWrites& writes)
      : host_(host),
        context_(host.context()),
        state_(host.state()),
        placer_(placer),
        space_(space),
        writes_(writes) {}

  // Carries a plan out; `pages`: those that it asked for. What was pending is in the log then.
  absl::Status Write(LogPlan& plan, const PageSet& pages);

  // Moves all pending entries to a log run, ahead of the checkpoint. The placer's error says
  // whether flash was full.
  void Spill();
  // Whether a spill that had read failed since the last call: the operation that waits for it is to
  // be refused.
  bool TakeSpillFailure() { return std::exchange(spill_failed_, false); }

  // Writes the new records of `plan` alone, which has no carried rows, and gives the rows to the
  // state; `before` runs when nothing can fail any more.
  absl::Status WriteRecords(LogPlan& plan, const std::function<void()>& before);

 private:
  // The runs that are written, while they are filled: one, or several where flash has no range of
  // free pages that is long enough.
  struct LogRuns {
    struct Run {
      ExtentRef extent;
      SharedBuffer image;
      std::int64_t used_bytes = 0;

      std::int64_t room_bytes() const { return extent->size_bytes() - used_bytes; }
    };
    // Where the next record goes. REQUIRES: there is a run with room for it.
    Run& RunFor(std::int64_t record_bytes);
    // What comes from here on is carried.
    void BeginCarried() { current = std::max(current, first_of_carried); }

    std::vector<Run> runs;
    std::size_t current = 0;
    std::size_t first_of_carried = 0;  // the first run that is for carried rows only; 0: none
    std::int64_t next_id = 0;
  };

  // Of plan.parts, for a log run: what is linked goes first, along the links.
  std::vector<ClusterKey> OrderOfRows(const LogPlan& plan) const;
  // Returns the bytes.
  std::int64_t WriteRuns(LogRuns& runs);
  void FinishSpill(LogPlan& plan, const PageSet& pages);
  void TakeRecords(LogPlan& plan, const PageSet& pages);
  static void DropAgain(LogPlan& plan);
  absl::Status AllocateRuns(LogPlan& plan, LogRuns& runs) const;
  static std::int64_t CarriedRecordBytes(const LogPlan& plan);
  absl::Status AllocatePieces(LogPlan& plan, std::int64_t left_bytes, LogRuns& runs) const;
  std::vector<Part> MakeRecords(const ClusterKey& key, const std::vector<LogItem>& items,
                                LogRuns& runs) const;

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  Placer& placer_;
  SegmentSpace& space_;
  SessionWrites& writes_;
  bool spill_failed_ = false;
};

}  // namespace cairn::kv
