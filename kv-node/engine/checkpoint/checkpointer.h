// Checkpointer takes a session's checkpoints. The order of docs/on-disk-format.md, "One checkpoint,
// in order", is in this one class: rows are captured at the cut (rule 8), all writes that they name
// end, the device is flushed, the batch is committed, and only then is the checkpoint acknowledged.
//
// Threading:  the engine thread.
// Errors:     INVALID_ARGUMENT; RESOURCE_EXHAUSTED flash is full; what PlanCheckpoint says. A flush
//             or a commit that fails ends the attachment.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "kv-node/engine/checkpoint/log_writer.h"
#include "kv-node/engine/index/session_index.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/engine/place/placer.h"
#include "kv-node/engine/state/segment_space.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

class Checkpointer {
 public:
  struct Parts {
    Placer& placer;
    LogWriter& log;
    SessionIndex& index;
    CoFetches& co_fetches;
    SegmentSpace& space;
    SessionWrites& writes;
  };
  // All outlive it but `loaded`, whose rows of the open segment, policy and tokens it takes. `row`
  // is as committed, but for the owner's attempts behind this attach.
  Checkpointer(SessionHost& host, const Parts& parts, SessionRow& row, LoadedState& loaded);

  // Entries and a policy's state for the next checkpoint. REQUIRES: the entries were checked.
  void Stage(StageCarried& op);
  void PutPolicy(PutPolicyState op);
  const PolicyRow& policy() const { return policy_; }
  const SegmentRow& segment_row() const { return segment_row_; }

  // At the head of the queue. Takes what `op` has unless it must wait.
  Applied Apply(OpSeq op_seq, Checkpoint& op);
  // Flushes and commits when all writes before the cut have ended.
  void Advance();

 private:
  // Between its cut and its acknowledgement.
  struct Job {
    OpSeq op_seq;
    Checkpoint op;
    std::uint64_t write_number = 0;  // all writes up to it must have ended
    bool flushing = false;
    MetaBatch batch;
    // What the session becomes once the batch is committed.
    SessionRow row;
    SegmentRow segment_row;
    SegmentId sealed;
    std::vector<ExtentRef> named;     // extents that committed rows begin to name
    std::vector<ExtentRef> released;  // and those that they cease to name
    std::vector<ExtentRef> dropped;   // with an end that they cease to name: in use until then
  };

  std::int64_t LogPageCountMax() const;
  absl::Status CheckCheckpoint(const Checkpoint& op) const;
  bool Seals(const Checkpoint& op) const;
  absl::Status Cut(Job& job, LogPlan& plan, const PageSet& pages);
  void Commit();
  // What comes from now on belongs to segment `next`, which begins at position `start`.
  void RollTo(std::int64_t start, SegmentId next);
  void Committed(const absl::Status& status);

  // ---- checkpoint_capture.cc ----
  void CaptureRows(Job& job);
  void CaptureLinks(Job& job);
  void CaptureAllocation(Job& job);
  void CaptureTokens(Job& job);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  Placer& placer_;
  LogWriter& log_;
  SessionIndex& index_;
  CoFetches& co_fetches_;
  SegmentSpace& space_;
  SessionWrites& writes_;
  SessionRow& row_;
  SegmentRow segment_row_;
  PolicyRow policy_;
  std::vector<std::int32_t> tail_tokens_;
  std::int64_t tail_start_;
  std::map<ClusterKey, CarriedEntries> staged_;
  std::unique_ptr<Job> job_;
};

}  // namespace cairn::kv
