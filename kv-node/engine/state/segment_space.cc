#include "kv-node/engine/state/segment_space.h"

#include "common/base/fail_point.h"

namespace cairn::kv {
namespace {

ExtentSet NamedLogRuns(const SegmentRows& open) {
  ExtentSet named;
  for (const auto& [first, run] : open.parts.log_runs()) named.insert(run.extent.get());
  for (const auto& [key, parts] : open.carried) {
    for (const Part& part : parts) {
      if (part.extent->kind() == ExtentKind::kLogRun) named.insert(part.extent.get());
    }
  }
  return named;
}

}  // namespace

void SegmentSpace::AddLogRun(const ExtentRef& extent) {
  new_extents_.push_back(extent);
  log_extents_.push_back(extent);
}

void SegmentSpace::DropIndexRun(const ExtentRef& extent) {
  if (std::erase(new_extents_, extent) == 0 && !FailPoint("an old index run's pages stay in use")) {
    dropped_extents_.push_back(extent);
  }
}

void SegmentSpace::ForgetUnnamedRuns(const SegmentRows& open) {
  const ExtentSet named_logs = NamedLogRuns(open);
  std::erase_if(new_extents_, [&](const ExtentRef& extent) {
    if (extent->kind() != ExtentKind::kLogRun || named_logs.contains(extent.get())) return false;
    std::erase(log_extents_, extent);
    return true;
  });
}

SegmentSpace::Cut SegmentSpace::TakeCut(const SegmentRows& open, const PoolTable::Changes& pools,
                                        MetaBatch& batch) {
  const ExtentSet named_logs = NamedLogRuns(open);
  std::erase_if(log_extents_, [&](const ExtentRef& extent) {
    if (named_logs.contains(extent.get())) return false;
    dropped_extents_.push_back(extent);
    return true;
  });
  new_extents_.insert(new_extents_.end(), pools.named.begin(), pools.named.end());
  dropped_extents_.insert(dropped_extents_.end(), pools.released.begin(), pools.released.end());
  AllocationEdit records(regions_);
  for (const ExtentRef& extent : new_extents_) {
    if (!FailPoint("new extents are not in the allocation record")) {
      records.Mark(extent->first(), extent->page_count(), true);
    }
  }
  for (const ExtentRef& extent : dropped_extents_) {
    if (!FailPoint("dropped extents stay in the allocation record")) {
      records.Mark(extent->first(), extent->page_count(), false);
    }
  }
  records.PutTo(batch, open.id);
  Cut cut{std::exchange(new_extents_, {}), std::exchange(dropped_extents_, {}), 0};
  for (const auto& [region, bits] : regions_) {
    cut.flash_bytes += static_cast<std::int64_t>(bits.count()) * kPageBytes;
  }
  return cut;
}

void SegmentSpace::BeginSegment() {
  regions_.clear();
  if (!FailPoint("a sealed segment's log runs stay the session's (rule 3)")) log_extents_.clear();
}

}  // namespace cairn::kv
