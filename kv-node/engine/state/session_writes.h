// SessionWrites are the writes of a session that are in flight: a checkpoint is durable when all of
// those have ended that began before its cut.
//
// Threading:  the engine thread.
// Errors:     a write that fails ends the attachment.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "common/base/fail_point.h"
#include "kv-node/engine/state/session_host.h"

namespace cairn::kv {

class SessionWrites {
 public:
  // `host` outlives it.
  explicit SessionWrites(SessionHost& host) : host_(host) {}

  // Pages from `first` on are written with the whole buffer.
  void Write(const ExtentRef& extent, PageIndex first, SharedBuffer buffer, WriteCause cause) {
    const std::uint64_t number = ++last_number_;
    in_flight_.insert(number);
    // Rule 15: space is in use while a write in flight names it.
    host_.context().io->Write(
        first, std::move(buffer), cause,
        [this, number,
         held = FailPoint("a write does not hold its pages (rule 15)") ? nullptr : extent,
         io = host_.HoldIo()](const absl::Status& status) {
          in_flight_.erase(number);
          if (!status.ok() && !FailPoint("a write that failed is forgotten")) {
            host_.Fail(Annotate(status, fmt::format("session {}", host_.id())));
          }
        });
  }

  // Of the last write that began.
  std::uint64_t last_number() const { return last_number_; }
  bool HasEndedUpTo(std::uint64_t number) const {
    return in_flight_.empty() || *in_flight_.begin() > number;
  }

 private:
  SessionHost& host_;
  std::set<std::uint64_t> in_flight_;
  std::uint64_t last_number_ = 0;
};

}  // namespace cairn::kv
