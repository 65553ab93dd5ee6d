// IdSource gives out ids of parts, segments and sessions: store-wide, never used twice, because a
// checksum is seeded with them. They are reserved in durable blocks: an id is used only when the
// block that holds it is on disk.
//
// Threading:  the engine thread.
// Errors:     Next answers UNAVAILABLE while the next block is on its way to the disk (never in
//             practice: it is reserved when half of the last one is left).
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/status.h"

namespace cairn::kv {

inline constexpr std::int64_t kIdBlockCount = std::int64_t{1} << 20;

class IdSource {
 public:
  // Ids from `next` up to `limit` - 1 are reserved. `reserve(new_limit, done)` makes a new limit
  // durable.
  using Reserve = std::function<void(std::int64_t limit, std::function<void(absl::Status)> done)>;
  IdSource(std::int64_t next, std::int64_t limit, Reserve reserve)
      : next_(next), limit_(limit), reserve_(std::move(reserve)) {}

  // The first of `count` consecutive ids.
  absl::StatusOr<std::int64_t> Next(std::int64_t count = 1) {
    if (!reserving_ && limit_ - next_ - count < kIdBlockCount / 2) StartReserving();
    if (next_ + count > limit_) {
      return Unavailable("no reserved id is left: {} of {}", next_, limit_);
    }
    return std::exchange(next_, next_ + count);
  }

 private:
  void StartReserving() {
    reserving_ = true;
    const std::int64_t limit = limit_ + kIdBlockCount;
    reserve_(limit, [this, limit](const absl::Status& status) {
      reserving_ = false;
      if (status.ok()) limit_ = limit;
    });
  }

  std::int64_t next_;
  std::int64_t limit_;
  bool reserving_ = false;
  Reserve reserve_;
};

}  // namespace cairn::kv
