#include "common/kv/positions.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace cairn {

Positions Positions::Range(std::int64_t first, std::int64_t count) {
  Positions out;
  if (count > 0) out.AppendRun({first, count});
  return out;
}

absl::StatusOr<Positions> Positions::FromRuns(Runs runs) {
  Positions out;
  std::size_t made_count = 0;
  for (const Run& run : runs) {
    if (run.length < 1 || run.start < 0 || run.start > kPositionMax ||
        run.length > kPositionMax - run.start + 1) {
      return InvalidArgument("run of positions from {} of length {} is out of range", run.start,
                             run.length);
    }
    Run* last = made_count > 0 ? &runs[made_count - 1] : nullptr;
    if (last != nullptr && run.start < last->start + last->length) {
      return InvalidArgument("positions do not ascend: {} after {}", run.start,
                             last->start + last->length - 1);
    }
    out.count_ += run.length;
    if (last != nullptr && run.start == last->start + last->length) {
      last->length += run.length;
    } else {
      runs[made_count++] = run;
    }
  }
  runs.resize(made_count);
  out.runs_ = std::move(runs);
  return out;
}

Positions Positions::FromOwnRuns(Runs runs) {
  Positions out;
  std::int64_t end = -1;
  for (const Run& run : runs) {
    CAIRN_CHECK(run.length > 0 && run.start > end);
    end = run.start + run.length;
    out.count_ += run.length;
  }
  out.runs_ = std::move(runs);
  return out;
}

Positions Positions::Joined(const Positions& a, const Positions& b) {
  Positions out;
  auto next_a = a.runs_.begin();
  auto next_b = b.runs_.begin();
  while (next_a != a.runs_.end() || next_b != b.runs_.end()) {
    const bool from_a =
        next_b == b.runs_.end() || (next_a != a.runs_.end() && next_a->start < next_b->start);
    out.AppendRun(from_a ? *next_a++ : *next_b++);
  }
  return out;
}

Positions Positions::FromUnsorted(std::vector<std::int64_t> positions) {
  std::sort(positions.begin(), positions.end());
  Positions out;
  for (const std::int64_t position : positions) out.Append(position);
  return out;
}

std::int64_t Positions::at(std::int64_t index) const {
  for (const Run& run : runs_) {
    if (index < run.length) return run.start + index;
    index -= run.length;
  }
  CAIRN_CHECK(false && "index out of range");
  return -1;
}

std::int64_t Positions::CountBelow(std::int64_t limit) const {
  std::int64_t below = 0;
  for (const Run& run : runs_) {
    if (run.start >= limit) break;
    below += std::min(run.length, limit - run.start);
  }
  return below;
}

bool Positions::Contains(std::int64_t position) const {
  return CountBelow(position + 1) != CountBelow(position);
}

std::optional<std::int64_t> Positions::FirstShared(const Positions& other) const {
  auto mine = runs_.begin();
  auto theirs = other.runs_.begin();
  while (mine != runs_.end() && theirs != other.runs_.end()) {
    const std::int64_t first = std::max(mine->start, theirs->start);
    const std::int64_t my_end = mine->start + mine->length;
    const std::int64_t their_end = theirs->start + theirs->length;
    if (first < std::min(my_end, their_end)) return first;
    ++(my_end < their_end ? mine : theirs);
  }
  return std::nullopt;
}

void Positions::AppendAll(const Positions& more) {
  for (const Run& run : more.runs_) AppendRun(run);
}

Positions Positions::Slice(std::int64_t first_index, std::int64_t count) const {
  CAIRN_CHECK(first_index >= 0 && count >= 0 && first_index + count <= count_);
  Positions out;
  for (const Run& run : runs_) {
    if (count == 0) break;
    if (first_index >= run.length) {
      first_index -= run.length;
      continue;
    }
    const std::int64_t take = std::min(count, run.length - first_index);
    out.AppendRun({run.start + first_index, take});
    count -= take;
    first_index = 0;
  }
  return out;
}

void Positions::AppendRun(Run run) {
  CAIRN_CHECK_GE(run.length, 1);
  if (!runs_.empty()) {
    CAIRN_CHECK_LT(last(), run.start);
    if (last() + 1 == run.start) {
      runs_.back().length += run.length;
      count_ += run.length;
      return;
    }
  }
  runs_.push_back(run);
  count_ += run.length;
}

}  // namespace cairn
