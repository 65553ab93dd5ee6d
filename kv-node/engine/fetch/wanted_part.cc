#include "kv-node/engine/fetch/wanted_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::kv {
namespace {

// Sorts what they are compared by, which lies together: the parts are large.
void SortByPages(std::vector<WantedPart*>& parts) {
  struct Key {
    PageIndex first_page;
    std::int64_t page_count;
    WantedPart* part;
  };
  std::vector<Key> keys;
  keys.reserve(parts.size());
  for (WantedPart* part : parts) keys.push_back({part->first_page, part->page_count, part});
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return std::pair(a.first_page, a.page_count) < std::pair(b.first_page, b.page_count);
  });
  for (std::size_t i = 0; i < keys.size(); ++i) parts[i] = keys[i].part;
}

}  // namespace

WantedPart Want(Visible<StoredPart> visible, std::int64_t entry_bytes) {
  WantedPart wanted;
  wanted.entry_bytes = entry_bytes;
  wanted.count = visible.count;
  wanted.of_open_segment = visible.of_open_segment;
  const PageSpan pages = PagesOf(RangeOf(visible.part, entry_bytes, 0, visible.count));
  wanted.first_page = PageIndex(visible.part.first_page.value() + pages.first);
  wanted.page_count = pages.count;
  wanted.part = std::move(visible.part);
  return wanted;
}

void HoldPages(SessionState& state, WantedPart& wanted) {
  if (wanted.extent != nullptr || !wanted.of_open_segment) return;
  wanted.extent = state.open().parts.Hold(wanted.part);
}

bool IsIntact(const StoreId& store, const WantedPart& wanted) {
  const ByteRange whole = RangeOf(wanted.part, wanted.entry_bytes, 0, wanted.part.count());
  const std::int64_t first = wanted.first_page.value() - wanted.part.first_page.value();
  for (std::int64_t i = 0; i < wanted.page_count; ++i) {
    const PageBytes page(wanted.pages + i * kPageBytes, kPageBytes);
    const PagePiece piece = PieceIn(wanted.part, whole, first + i);
    if (!PieceIsIntact(store, wanted.part, piece, page)) return false;
  }
  return true;
}

std::vector<FetchRun> MergeRuns(std::vector<WantedPart*> parts, const MergeLimits& limits,
                                std::int64_t hole_bytes_max) {
  SortByPages(parts);
  std::vector<FetchRun> runs;
  runs.reserve(parts.size());
  std::int64_t hole_bytes_left = hole_bytes_max;
  for (WantedPart* part : parts) {
    const std::int64_t end = part->first_page.value() + part->page_count;
    if (!runs.empty()) {
      FetchRun& run = runs.back();
      const std::int64_t run_end = run.first_page.value() + run.page_count;
      const std::int64_t merged = std::max(run_end, end) - run.first_page.value();
      const std::int64_t hole_bytes =
          std::max<std::int64_t>(0, part->first_page.value() - run_end) * kPageBytes;
      const bool is_cheap = hole_bytes <= std::min(limits.gap_bytes, hole_bytes_left) &&
                            part->page_count * kPageBytes <= limits.piece_bytes_max;
      if (merged <= kSlotPagesMax && (hole_bytes == 0 || is_cheap)) {
        hole_bytes_left -= hole_bytes;
        run.hole_page_count += hole_bytes / kPageBytes;
        run.page_count = merged;
        run.parts.push_back(part);
        continue;
      }
    }
    runs.push_back({part->first_page, part->page_count, 0, {part}});
  }
  return runs;
}

void SplitRun(FetchRun run, std::vector<FetchRun>& runs) {
  const auto middle = run.parts.begin() + std::ssize(run.parts) / 2;
  for (std::vector<WantedPart*> half : {std::vector<WantedPart*>(run.parts.begin(), middle),
                                        std::vector<WantedPart*>(middle, run.parts.end())}) {
    const PageIndex first = half.front()->first_page;
    FetchRun out{first, 0, 0, {}};
    for (const WantedPart* part : half) {
      const std::int64_t begin = part->first_page.value() - first.value();
      out.hole_page_count += std::max<std::int64_t>(0, begin - out.page_count);
      out.page_count = std::max(out.page_count, begin + part->page_count);
    }
    out.parts = std::move(half);
    runs.push_back(std::move(out));
  }
}

void EndRun(const FetchRun& run, const std::set<PageIndex>& failed) {
  for (WantedPart* wanted : run.parts) {
    const auto bad = failed.lower_bound(wanted->first_page);
    const PageIndex end(wanted->first_page.value() + wanted->page_count);
    wanted->read_failed = bad != failed.end() && *bad < end;
  }
}

void ClearHoles(const FetchRun& run, std::span<std::byte> memory) {
  if (run.hole_page_count == 0) return;
  std::int64_t end = 0;
  const auto at = [](std::int64_t page) { return static_cast<std::size_t>(page * kPageBytes); };
  for (const WantedPart* wanted : run.parts) {
    const std::int64_t begin = wanted->first_page.value() - run.first_page.value();
    if (begin > end) std::memset(memory.data() + at(end), 0, at(begin - end));
    end = std::max(end, begin + wanted->page_count);
  }
}

}  // namespace cairn::kv
