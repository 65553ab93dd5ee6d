#include "kv-node/engine/state/segment_parts.h"

#include <utility>

#include "common/base/fail_point.h"

namespace cairn::kv {

ExtentRef SegmentParts::Hold(const StoredPart& part) const {
  if (part.kind == ExtentKind::kPool && pools_ != nullptr) return pools_->Hold(part);
  if (part.kind == ExtentKind::kLogRun) return log_runs_.at(part.first_page).extent;
  // Its pages are nobody's to free here.
  return std::make_shared<Extent>(nullptr, part.kind, part.first_page, part.page_count,
                                  /*committed=*/true);
}

std::vector<Part> SegmentParts::Find(const ClusterKey& key) const {
  std::vector<Part> parts;
  for (StoredPart& stored : rows_.Find(key)) {
    ExtentRef extent = Hold(stored);
    parts.emplace_back(std::move(stored), std::move(extent));
  }
  return parts;
}

void SegmentParts::Put(const ClusterKey& key, const std::vector<Part>& parts) {
  std::vector<StoredPart> stored;
  stored.reserve(parts.size());
  std::vector<std::pair<std::size_t, ExtentRef>> logged;
  for (const Part& part : parts) {
    if (part.kind == ExtentKind::kLogRun) logged.emplace_back(stored.size(), part.extent);
    stored.push_back(part);
  }
  // What comes is counted first, so that a run that both rows name stays.
  for (const auto& [index, extent] : logged) CountLog(key, stored[index], extent);
  UncountLogs(key);
  if (stored.empty()) {
    rows_.Erase(key);
  } else {
    rows_.Put(key, stored);
  }
}

void SegmentParts::CountLog(const ClusterKey& key, const StoredPart& part,
                            const ExtentRef& extent) {
  LogRun& run = log_runs_[part.first_page];
  run.extent = extent;
  run.named_bytes += part.positions.count() * layout_.EntryBytes(key.head);
}

void SegmentParts::UncountLogs(const ClusterKey& key) {
  for (const StoredPart& part : rows_.Find(key)) {
    if (part.kind != ExtentKind::kLogRun) continue;
    const auto run = log_runs_.find(part.first_page);
    run->second.named_bytes -= part.positions.count() * layout_.EntryBytes(key.head);
    if (run->second.named_bytes == 0 && !FailPoint("log runs that no row names are kept")) {
      log_runs_.erase(run);
    }
  }
}

SegmentParts SegmentParts::Seal() { return {layout_, std::exchange(pools_, nullptr)}; }

std::int64_t SegmentParts::memory_bytes() const {
  constexpr std::int64_t kRunBytes = 160;  // of a log run's extent and its node here
  return rows_.memory_bytes() + static_cast<std::int64_t>(log_runs_.size()) * kRunBytes;
}

}  // namespace cairn::kv
