// Positions: ascending token positions, held as runs, because most clusters hold neighbours.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "common/base/status.h"

namespace cairn {

// The largest position that any session may use; far above what a phone holds, low enough that no
// sum overflows.
inline constexpr std::int64_t kPositionMax = (std::int64_t{1} << 31) - 1;

// A value type; not synchronised.
//
// Invariant:  runs are ascending, do not touch, and are not empty.
class Positions {
 public:
  struct Run {
    std::int64_t start = 0;
    std::int64_t length = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  // One needs no memory of its own.
  using Runs = absl::InlinedVector<Run, 1>;

  Positions() = default;
  // first, first + 1, ... count of them.
  static Positions Range(std::int64_t first, std::int64_t count);
  // From runs that came from outside: INVALID_ARGUMENT unless ascending, without overlap, within 0
  // .. kPositionMax.
  static absl::StatusOr<Positions> FromRuns(Runs runs);
  // From runs() of another one.
  static Positions FromOwnRuns(Runs runs);
  // Those of both. REQUIRES: none is in both.
  static Positions Joined(const Positions& a, const Positions& b);
  // Sorts. REQUIRES: no position twice.
  static Positions FromUnsorted(std::vector<std::int64_t> positions);

  std::int64_t count() const { return count_; }
  bool empty() const { return count_ == 0; }
  // REQUIRES: not empty.
  std::int64_t first() const { return runs_.front().start; }
  std::int64_t last() const { return runs_.back().start + runs_.back().length - 1; }
  // The i-th position.
  std::int64_t at(std::int64_t index) const;
  const Runs& runs() const { return runs_; }

  // How many are below `limit`: they are the first ones, because positions ascend.
  std::int64_t CountBelow(std::int64_t limit) const;
  bool Contains(std::int64_t position) const;
  // The first one that `other` has too; nullopt: there is none.
  std::optional<std::int64_t> FirstShared(const Positions& other) const;
  // REQUIRES: position is above last().
  void Append(std::int64_t position) { AppendRun({position, 1}); }
  void AppendAll(const Positions& more);
  Positions Slice(std::int64_t first_index, std::int64_t count) const;

  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (const Run& run : runs_) {
      for (std::int64_t i = 0; i < run.length; ++i) fn(run.start + i);
    }
  }
  friend bool operator==(const Positions&, const Positions&) = default;

 private:
  void AppendRun(Run run);

  Runs runs_;
  std::int64_t count_ = 0;
};

}  // namespace cairn
