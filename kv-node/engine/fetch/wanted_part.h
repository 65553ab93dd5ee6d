// Parts that are to be brought into memory, and the runs of pages in which they are read.
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread.
// Ownership:  a run points to parts that its job keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kv-node/cache/slot_cache.h"
#include "kv-node/engine/io/page_io.h"
#include "kv-node/engine/state/session_state.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

// The pages that entries 0 .. count - 1 of a part touch, in memory or to be brought there.
struct WantedPart {
  StoredPart part;
  bool of_open_segment = false;
  ExtentRef extent;  // keeps the pages in use from when the part is read or waited for
  std::int64_t entry_bytes = 0;
  std::int64_t count = 0;
  PageIndex first_page;
  std::int64_t page_count = 0;

  enum class Outcome : std::uint8_t { kOpen, kServed, kLost, kUnreadable };
  Outcome outcome = Outcome::kOpen;
  // What the device does not give is asked for once more, and so is what fails its check: only what
  // fails it twice is lost.
  bool read_here = false;    // by this fetch
  bool read_failed = false;  // the last time
  bool failed_before = false;
  bool damaged_before = false;
  SlotRef slot;                       // null: not in the arena
  const std::byte* pages = nullptr;   // the first page
  std::shared_ptr<const void> owner;  // keeps `pages`
};

WantedPart Want(Visible<StoredPart> visible, std::int64_t entry_bytes);
// Keeps the pages in use. The first look at a part comes while rows name it; those of a sealed
// segment stay in use anyway.
void HoldPages(SessionState& state, WantedPart& wanted);
// Whether `pages` pass the part's checks. REQUIRES: wanted.pages.
bool IsIntact(const StoreId& store, const WantedPart& wanted);

// Consecutive pages that are read together, for some of the wanted parts.
struct FetchRun {
  PageIndex first_page;
  std::int64_t page_count = 0;
  std::int64_t hole_page_count = 0;  // of them, that no part asked for
  std::vector<WantedPart*> parts;    // by first page
};

// Parts whose pages overlap or touch share a run, and those behind a hole that costs less than
// another request. A part is never cut. `hole_bytes_max`: of all runs together.
std::vector<FetchRun> MergeRuns(std::vector<WantedPart*> parts, const MergeLimits& limits,
                                std::int64_t hole_bytes_max);
// Adds two runs of half of the parts each. REQUIRES: two parts or more.
void SplitRun(FetchRun run, std::vector<FetchRun>& runs);
// Tells the parts whose pages failed.
void EndRun(const FetchRun& run, const std::set<PageIndex>& failed);
// A hole may hold other sessions' entries, and clients read the arena.
void ClearHoles(const FetchRun& run, std::span<std::byte> memory);

}  // namespace cairn::kv
