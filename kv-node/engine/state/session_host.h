// SessionHost is what the parts of an attached session see of it: the engine around it, its rows,
// and how it answers. AttachedSession is one.
//
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kv-node/engine/engine_context.h"
#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {

// Of an operation at the head of a session's queue.
enum class Applied : std::uint8_t { kYes, kWait };

// What becomes of the operation at the head of the queue behind the read that it waits for.
enum class AfterRead : std::uint8_t { kIsApplied, kIsTriedAgain };

class SessionHost {
 public:
  virtual EngineContext& context() = 0;
  virtual SessionId id() const = 0;
  virtual SessionState& state() = 0;
  virtual SlotCache* cache() = 0;  // its app's; null: without an arena
  // The attachment has ended: nothing is answered any more, and what was read is dropped (rule 5).
  virtual bool stopped() const = 0;
  // It has, or a write failed: nothing new is begun.
  virtual bool ends() const = 0;
  // Held by every callback of I/O and commits: the session lives until all are gone.
  virtual std::shared_ptr<void> HoldIo() = 0;
  // Whether buffers of I/O and unsent replies leave room; if not, their release wakes the engine.
  virtual bool HasIoRoom() = 0;
  // Reads pages for placing, for the operation at the head of the queue: those behind it wait.
  // `done` runs unless the attachment ends meanwhile, and `doubt` as PageIo::Read calls it.
  virtual void ReadAtHead(std::vector<PageIndex> pages, AfterRead after, PageIo::ReadDone done,
                          PageIo::Doubt doubt = nullptr) = 0;

  virtual void Reply(RequestId request_id, absl::StatusOr<ReadReply> reply) = 0;
  // A changing operation is applied, or it is refused, which is told.
  virtual Applied Finish(OpSeq op_seq, const absl::Status& status) = 0;
  // A write failed: the attachment ends.
  virtual void Fail(const absl::Status& status) = 0;
  // A checkpoint is committed; `sealed`: the segment that it sealed, or 0.
  virtual void TellCheckpointed(OpSeq op_seq, std::int64_t token_count, SegmentId sealed) = 0;

 protected:
  ~SessionHost() = default;
};

}  // namespace cairn::kv
