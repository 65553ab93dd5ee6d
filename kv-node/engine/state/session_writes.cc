#include "kv-node/engine/state/session_writes.h"

#include <utility>

#include "common/base/fail_point.h"

namespace cairn::kv {

void SessionWrites::Write(const ExtentRef& extent, PageIndex first, SharedBuffer buffer,
                          WriteCause cause) {
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

}  // namespace cairn::kv
