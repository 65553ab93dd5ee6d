// PageIo moves pages between the device and memory for the engine. It keeps the pages of writes in
// flight, so that reads are served from memory and never see a torn page, and it merges pages that
// are neighbours, or nearly so, into one device request: a hole between them is read too when that
// costs less than another request.
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread; buffers may be released on any thread.
// Blocking:   never.
// Ownership:  borrows the device. Buffers are shared: the device holds them until its completion
//             ran.
// Errors:     a read that fails is tried once more, and then marks its pages as failed; the others
//             are served. A failed write is reported to its caller.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kv-node/device/device.h"
#include "kv-node/engine/io/buffer_pool.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

// Pages that were read together, in ascending order; consecutive pages lie one after the other in
// the buffer. Pages that nobody asked for, in holes, may be among them: nothing is known of them.
class PageSet {
 public:
  PageSet() = default;
  PageSet(std::vector<PageIndex> pages, SharedBuffer buffer)
      : pages_(std::move(pages)), buffer_(std::move(buffer)) {}
  const SharedBuffer& buffer() const { return buffer_; }
  std::int64_t page_count() const { return std::ssize(pages_); }
  // REQUIRES: the page is in the set.
  PageBytes Page(PageIndex page) const { return {At(page), kPageBytes}; }
  const std::byte* At(PageIndex page) const { return buffer_->data() + OffsetOf(page); }
  // Of the page in the buffer, in bytes.
  std::int64_t OffsetOf(PageIndex page) const;
  bool Failed(PageIndex page) const { return failed_.contains(page); }
  const std::set<PageIndex>& failed() const { return failed_; }
  void MarkFailed(PageIndex page) { failed_.insert(page); }
  void ForgetFailed(const std::set<PageIndex>& pages) {
    for (const PageIndex page : pages) failed_.erase(page);
  }
  // Bytes [range.begin, range.end) of an extent. REQUIRES: all pages of the range are in the set.
  std::span<const std::byte> Bytes(const Extent& extent, ByteRange range) const;

 private:
  std::vector<PageIndex> pages_;
  SharedBuffer buffer_;
  std::set<PageIndex> failed_;
};

enum class PartState : std::uint8_t {
  kIntact,
  kUnreadable,  // the device did not give a page: nothing is known of it
  kDamaged,     // a page that it gave fails its check
};
// Of the part's pages that entries 0 .. count - 1 touch. Logs what is not intact.
PartState CheckPart(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                    std::int64_t count, const PageSet& pages);
// Computes the checksums of the pages that entries first .. first + count - 1 of a part touch.
// `image` begins at byte `image_begin` of the extent and holds all of the part's bytes in those
// pages.
void SetCrcs(const StoreId& store, Part& part, std::int64_t entry_bytes, std::int64_t first,
             std::int64_t count, const AlignedBuffer& image, std::int64_t image_begin);

// When a hole between two asked pieces is read with them. A longer piece behind the hole gains
// nothing: its own request uses the device's bandwidth in full.
struct MergeLimits {
  std::int64_t gap_bytes = 0;        // the largest hole; 0: none is read
  std::int64_t piece_bytes_max = 0;  // of the piece behind the hole
};

// Fetches and index runs go first (IoClass::kDemand). What placing and checkpoints read and write
// follows (kWriteBack), and kDefragment comes last.
enum class ReadCause { kFetch, kIndex, kPlace, kDefragment };
// kSplit goes to a pool, too.
enum class WriteCause { kPool, kSplit, kLog, kIndex, kDefragment };

// Entries 0 .. count - 1 of a part, to be read.
struct PartRead {
  Part part;
  std::int64_t entry_bytes = 0;
  std::int64_t count = 0;
};
std::vector<PageIndex> PagesOf(const std::vector<PartRead>& parts);

class PageIo {
 public:
  using ReadDone = std::function<void(PageSet)>;
  // Pages of the set that are doubtful and are to be read once more.
  using Doubt = std::function<std::vector<PageIndex>(const PageSet&)>;
  using ReadRunDone = std::function<void(const std::set<PageIndex>& failed)>;
  using WriteDone = std::function<void(absl::Status)>;

  // Bytes of holes in one read at most: they take memory beside what was asked for.
  static constexpr std::int64_t kHoleBytesMax = std::int64_t{1} << 20;

  // Counts in `counts`, which outlives it, what is read and written; holes that are read count as
  // read, too.
  PageIo(Device& device, const MergeLimits& merge, KvStats& counts);
  ~PageIo();
  PageIo(const PageIo&) = delete;
  PageIo& operator=(const PageIo&) = delete;

  // `pages` in any order, duplicates allowed, one at least. `done` never runs inside Read. What
  // failed is read once more, and so is what `doubt` names: each page once for either reason.
  void Read(std::vector<PageIndex> pages, ReadCause cause, ReadDone done, Doubt doubt = nullptr);
  // Consecutive pages from `first` on into the caller's memory, which stays until `done` ran.
  // `done` never runs inside ReadRun. Whoever put runs together over holes says so by NoteHoles.
  void ReadRun(PageIndex first, std::span<std::byte> memory, ReadCause cause, ReadRunDone done);
  // Tells the function of every write, before it starts.
  void SetOnWrite(std::function<void(PageIndex first, std::span<const std::byte> bytes)> on_write) {
    on_write_ = std::move(on_write);
  }
  // Writes the whole buffer at `first`. REQUIRES: none of the pages has a write in flight.
  void Write(PageIndex first, SharedBuffer buffer, WriteCause cause, WriteDone done);
  // Of what was written as kLog, so many bytes were in the log before.
  void CountAsRelog(std::int64_t bytes);
  // Requests at the device or waiting for it.
  int in_flight_count() const { return device_.in_flight_count(); }
  int queue_depth() const { return device_.queue_depth(); }
  // See Device::KeepBusy.
  void KeepBusy() { device_.KeepBusy(); }
  bool IsBeingWritten(PageIndex page) const { return in_flight_.contains(page); }
  // Whether one of the pages [first, end) is.
  bool AnyBeingWritten(PageIndex first, PageIndex end) const;
  void Flush(WriteDone done);

  // Runs the callbacks of reads that needed no device. Returns whether there were any.
  bool RunReady();
  const MergeLimits& merge_limits() const { return merge_; }
  void NoteHoles(std::int64_t page_count) { counts_.read_hole_bytes += page_count * kPageBytes; }
  BufferPool& buffers() const { return *buffers_; }

 private:
  struct ReadJob;
  struct RunJob;
  // Pages that are read together.
  struct Run {
    PageIndex first;
    std::int64_t page_count = 0;
    bool has_holes = false;
    PageIndex end() const { return PageIndex(first.value() + page_count); }
  };
  struct InFlight {
    SharedBuffer buffer;
    std::int64_t offset_bytes = 0;
  };
  void CountRead(std::int64_t bytes, ReadCause cause);
  void CountWrite(std::int64_t bytes, WriteCause cause);
  // Without holes. `pages` ascends.
  static std::vector<Run> RunsOf(std::span<const PageIndex> pages);
  // Joins pieces over holes where that is cheap.
  std::vector<Run> MergeOverHoles(const std::vector<Run>& pieces) const;
  void StartRun(const std::shared_ptr<ReadJob>& job, const Run& run);
  void FinishRun(const std::shared_ptr<ReadJob>& job, const Run& run,
                 const std::set<PageIndex>& failed);
  void FinishReads(const std::shared_ptr<ReadJob>& job);

  Device& device_;
  const MergeLimits merge_;
  const std::shared_ptr<BufferPool> buffers_;
  std::map<PageIndex, InFlight> in_flight_;
  std::function<void(PageIndex, std::span<const std::byte>)> on_write_;
  std::vector<std::function<void()>> ready_;
  KvStats& counts_;
};

// Those of the parts' pages that fail their check.
PageIo::Doubt DoubtOf(const StoreId& store, std::vector<PartRead> parts);

}  // namespace cairn::kv
