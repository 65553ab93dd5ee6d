// SessionHost is what the parts of an attached session see of it: the engine around it, its rows,
// and how it answers. AttachedSession is one.
//
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <memory>

#include "kv-node/engine/engine_context.h"
#include "kv-node/engine/session_state.h"

namespace cairn::kv {

// Of an operation at the head of a session's queue.
enum class Applied : std::uint8_t { kYes, kWait };

class SessionHost {
 public:
  virtual EngineContext& context() = 0;
  virtual SessionId id() const = 0;
  virtual SessionState& state() = 0;
  // The attachment has ended: nothing is answered any more, and what was read is dropped (rule 5).
  virtual bool stopped() const = 0;
  // It has, or a write failed: nothing new is begun.
  virtual bool ends() const = 0;
  // Held by every callback of I/O and commits: the session lives until all are gone.
  virtual std::shared_ptr<void> HoldIo() = 0;
  // Whether buffers of I/O and unsent replies leave room; if not, their release wakes the engine.
  virtual bool HasIoRoom() = 0;
  virtual void Reply(RequestId request_id, absl::StatusOr<ReadReply> reply) = 0;

 protected:
  ~SessionHost() = default;
};

}  // namespace cairn::kv
