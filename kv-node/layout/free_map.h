// FreeMap says which pages of the extent file are in use; Extent is a range of them that frees
// itself. The map is never stored: it is rebuilt at start from the allocation records of all
// segments (docs/on-disk-format.md, "Allocation records").
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread; before it starts, the thread that opens the engine.
// Ownership:  an Extent keeps its map alive. The last reference to an Extent frees its pages unless
//             a committed row names it, or its keeper takes them back.
// Errors:     RESOURCE_EXHAUSTED no free range is long enough.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/strong_id.h"

namespace cairn::kv {

inline constexpr std::int64_t kPageBytes = 4096;
// Page numbers count from the start of the extent file; 0 and 1 are the superblock's.
using PageIndex = StrongId<struct PageIndexTag>;

class FreeMap {
 public:
  // All pages are free except the first `reserved_count`.
  FreeMap(std::int64_t page_count, std::int64_t reserved_count);

  std::int64_t page_count() const { return page_count_; }
  std::int64_t used_count() const { return used_count_; }
  // First fit from where the last search ended, so that what is written together lies together.
  absl::StatusOr<PageIndex> Allocate(std::int64_t count);
  // The error of who finds no room for so many pages `how` ("in one piece"): what is in use, and
  // what somebody can do about it.
  absl::Status Full(std::int64_t wanted_count, std::string_view how) const;
  // The same where having no room is a plain answer.
  std::optional<PageIndex> TryAllocate(std::int64_t count) {
    return TryAllocateBelow(page_count_, count);
  }
  // The same of a range in front of page `end`.
  std::optional<PageIndex> TryAllocateBelow(std::int64_t end, std::int64_t count);
  // The pages from here on are free.
  std::int64_t used_end() const;
  // All ranges of free pages, the longest first.
  struct Range {
    PageIndex first;
    std::int64_t count = 0;
  };
  std::vector<Range> FreeRanges() const;
  // False (and nothing changed) if one of the pages is out of range or in use already.
  [[nodiscard]] bool MarkUsed(PageIndex first, std::int64_t count);
  // REQUIRES: all of them are in use.
  void Free(PageIndex first, std::int64_t count);
  bool IsUsed(PageIndex page) const;

  // It is not known whether a row names these pages, which are in use. Until they are freed.
  void Doubt(PageIndex first, std::int64_t count);
  bool has_doubts() const { return !doubts_.empty(); }
  // What is doubted until now is looked for in rows that are read from now on. Gives the number of
  // this round for SettleDoubts.
  std::int64_t StartSettling() { return doubt_round_++; }
  // Frees what was doubted up to this round and is not in `named`, the pages of those rows. Gives
  // the number of pages that were freed.
  std::int64_t SettleDoubts(std::int64_t round, const FreeMap& named);

 private:
  // First range of `count` free pages that begins in [from, to); -1 if there is none.
  std::int64_t Search(std::int64_t from, std::int64_t to, std::int64_t count) const;
  void Set(std::int64_t first, std::int64_t count, bool used);

  std::int64_t page_count_;
  std::int64_t used_count_ = 0;
  std::int64_t cursor_;
  std::vector<std::uint64_t> words_;             // bit set: in use
  std::map<std::int64_t, std::int64_t> doubts_;  // page to round
  std::int64_t doubt_round_ = 0;
};

// What an extent holds. Numbers are on disk.
enum class ExtentKind : std::uint8_t {
  kPool = 1,       // two parts of one (segment, layer, head) that grow inward from its ends
  kLogRun = 2,     // records of one checkpoint, written once
  kPackedRun = 3,  // re-placed parts of a sealed segment, written once
  kIndexRun = 4,   // index rows, written once
};

class Extent;

// Owns extents for which no Extent exists for the time being.
class ExtentKeeper {
 public:
  ExtentKeeper() = default;
  virtual ~ExtentKeeper() = default;
  ExtentKeeper(const ExtentKeeper&) = delete;
  ExtentKeeper& operator=(const ExtentKeeper&) = delete;

  // The last reference to the extent is gone. False: it is not kept here.
  virtual bool TakeBack(const Extent& extent) = 0;
};

class Extent {
 public:
  // `map` may be null for one that is committed and stays so.
  Extent(std::shared_ptr<FreeMap> map, ExtentKind kind, PageIndex first, std::int64_t page_count,
         bool committed)
      : map_(std::move(map)),
        kind_(kind),
        first_(first),
        page_count_(page_count),
        committed_(committed) {}
  ~Extent() {
    const std::shared_ptr<ExtentKeeper> keeper = keeper_.lock();
    if (keeper != nullptr && keeper->TakeBack(*this)) return;
    if (!committed_) map_->Free(first_, page_count_);
  }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  ExtentKind kind() const { return kind_; }
  PageIndex first() const { return first_; }
  std::int64_t page_count() const { return page_count_; }
  std::int64_t size_bytes() const { return page_count_ * kPageBytes; }
  // Whether a committed row names it: then its pages stay in use when memory forgets it.
  bool committed() const { return committed_; }
  void set_committed(bool committed) {
    committed_ = committed;
    changed_ = true;
  }
  bool changed() const { return changed_; }  // whether set_committed was called
  void set_keeper(std::weak_ptr<ExtentKeeper> keeper) { keeper_ = std::move(keeper); }

 private:
  const std::shared_ptr<FreeMap> map_;
  const ExtentKind kind_;
  const PageIndex first_;
  const std::int64_t page_count_;
  bool committed_;
  bool changed_ = false;
  std::weak_ptr<ExtentKeeper> keeper_;
};

// In the order of their places, which a history repeats; addresses it does not.
struct ByPlace {
  bool operator()(const Extent* a, const Extent* b) const { return a->first() < b->first(); }
};
using ExtentSet = std::set<const Extent*, ByPlace>;
using ExtentBytes = std::map<const Extent*, std::int64_t, ByPlace>;
using ExtentRef = std::shared_ptr<Extent>;

}  // namespace cairn::kv
