#include "kv-node/engine/load/named_extents.h"

#include <algorithm>

namespace cairn::kv {
namespace {

absl::Status NamedTwice(PageIndex first_page) {
  return DataLoss("two parts name the extent at page {} with different sizes or kinds", first_page);
}

}  // namespace

void NamedExtents::Add(const StoredPart& part, std::int64_t cluster_bytes) {
  if (part.kind == ExtentKind::kLogRun) {
    Run& run = runs_.try_emplace(part.first_page, Run{part.page_count}).first->second;
    run.differs = run.differs || run.page_count != part.page_count;
    run.cluster_bytes += cluster_bytes;
    return;
  }
  const Other other{part.first_page, part.page_count, part.kind};
  if (others_.empty() || others_.back() != other) others_.push_back(other);
}

void NamedExtents::Append(NamedExtents later) {
  for (const auto& [page, run] : later.runs_) {
    Run& here = runs_.try_emplace(page, Run{run.page_count}).first->second;
    here.differs = here.differs || run.differs || here.page_count != run.page_count;
    here.cluster_bytes += run.cluster_bytes;
  }
  others_.insert(others_.end(), later.others_.begin(), later.others_.end());
}

absl::Status ExtentTable::Add(const NamedExtents& named) {
  for (const auto& [page, run] : named.runs()) {
    CAIRN_RETURN_IF_ERROR(CheckPlace(page, run.page_count));
    ExtentRef& extent = runs_[page];
    if (extent == nullptr) {
      extent = std::make_shared<Extent>(free_map_, ExtentKind::kLogRun, page, run.page_count, true);
    }
    if (run.differs || extent->page_count() != run.page_count) return NamedTwice(page);
  }
  for (const NamedExtents::Other& other : named.others()) {
    CAIRN_RETURN_IF_ERROR(AddOther(other));
  }
  return absl::OkStatus();
}

absl::Status ExtentTable::AddRunOfOne(const StoredPart& part) {
  CAIRN_RETURN_IF_ERROR(AddOther({part.first_page, part.page_count, part.kind}));
  return runs_of_one_.insert(part.first_page).second ? absl::OkStatus()
                                                     : NamedTwice(part.first_page);
}

absl::Status ExtentTable::Check() {
  std::sort(others_.begin(), others_.end());
  for (std::size_t i = 0; i < others_.size(); ++i) {
    const bool differs =
        i > 0 && others_[i].first_page == others_[i - 1].first_page && others_[i] != others_[i - 1];
    if (differs || runs_.contains(others_[i].first_page)) return NamedTwice(others_[i].first_page);
  }
  return absl::OkStatus();
}

std::map<PageIndex, SegmentParts::LogRun> ExtentTable::LogRunsOf(const NamedExtents& named) const {
  std::map<PageIndex, SegmentParts::LogRun> out;
  for (const auto& [page, run] : named.runs()) {
    if (run.cluster_bytes > 0) out[page] = {runs_.at(page), run.cluster_bytes};
  }
  return out;
}

std::vector<ExtentRef> ExtentTable::LogExtents() const {
  std::vector<ExtentRef> out;
  for (const auto& [page, extent] : runs_) out.push_back(extent);
  return out;
}

absl::Status ExtentTable::AddOther(const NamedExtents::Other& other) {
  CAIRN_RETURN_IF_ERROR(CheckPlace(other.first_page, other.page_count));
  others_.push_back(other);
  return absl::OkStatus();
}

absl::Status ExtentTable::CheckPlace(PageIndex first_page, std::int64_t page_count) const {
  if (first_page.value() >= 2 && first_page.value() + page_count <= free_map_->page_count()) {
    return absl::OkStatus();
  }
  return DataLoss("a part names pages {} + {}, beyond the extent file's {}", first_page, page_count,
                  free_map_->page_count());
}

}  // namespace cairn::kv
