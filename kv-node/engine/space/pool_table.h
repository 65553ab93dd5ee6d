// PoolTable knows the pools of a session's open segment: which part lies at each of their two ends,
// what still names an end, and so where a part may grow and where a new one may begin. Two parts
// share the room of a pool; they may meet in one page. docs/on-disk-format.md, "Pools, runs and
// parts"; rules 6 and 15 of docs/kv-node.md.
//
// An end is named by a row in memory. When that has ceased, it is in use as long as the pool's
// Extent exists: reads in flight have it. What a commit still names though memory has dropped it is
// held here until TakeChanges, and then by the checkpoint.
//
// A session may have 10^5 pools, so what is known of them is packed: about 33 bytes each. Of those
// that something holds there is more, in `live_`.
//
// Units:      bytes within a pool; `entry_bytes` as in layout/part.h.
// Threading:  the engine thread.
// Ownership:  owns the pools' pages until no row in memory names one of their ends; while an Extent
//             of a pool exists, that does. Nothing that it gives away needs to go before it.
// Invariants: the parts of a pool belong to one (layer, head); what names its two ends never
//             overlaps. Of a pool there is one Extent at most.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kv-node/engine/io/page_io.h"
#include "kv-node/engine/space/packed_map.h"
#include "kv-node/engine/space/part_rows.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

// Pools of a (layer, head) that are looked at for a free end, the newest ones: those behind them
// have been passed over often.
inline constexpr int kFreeEndTriesMax = 32;

class PoolTable : public ExtentKeeper, public std::enable_shared_from_this<PoolTable> {
 public:
  // Whether a write of the page is in flight.
  using WriteCheck = std::function<bool(PageIndex)>;

  // For std::make_shared only: what the table gives away knows it by a weak pointer.
  explicit PoolTable(std::shared_ptr<FreeMap> map) : map_(std::move(map)) {}
  ~PoolTable() override { FreeUncommitted(); }
  PoolTable(const PoolTable&) = delete;
  PoolTable& operator=(const PoolTable&) = delete;

  // A part that committed rows name, at the start of an attachment. DATA_LOSS if it overlaps the
  // part at the other end, or if another one lies at its end.
  absl::Status Adopt(LayerHead owner, std::int64_t entry_bytes, const StoredPart& part);
  // A new part. REQUIRES: nothing names its end, as in a fresh pool or at an end from FindEnd.
  void Add(LayerHead owner, std::int64_t entry_bytes, Part& part);
  // The extent of what a row in memory names.
  ExtentRef Hold(const StoredPart& part) { return ExtentOf(part.first_page, part.page_count); }
  // The part has more entries than before.
  void NoteGrowth(std::int64_t entry_bytes, const Part& part);
  // No row in memory names the part any more. Its end stays in use until a commit ceases to name
  // it.
  void Drop(const Part& part);

  // ---- where entries may go ----
  // Bytes that the part may have, with those that it has: up to the longest that anything names at
  // the other end, a read in flight too.
  std::int64_t RoomBytes(const Part& part) const;
  struct FreeEnd {
    ExtentRef extent;
    Direction direction = Direction::kUp;
  };
  // A pool, or one end of it.
  struct Place {
    PageIndex pool;
    std::optional<Direction> end;
  };
  // Where a new part would lie next to this one: across the seam, in the pool that touches its end,
  // where both are read at once; then in its own pool, with the room to grow between them.
  std::vector<Place> PlacesBeside(const Part& part) const;
  // An end for a new part of `bytes`, beside another part: one of the `preferred` places in their
  // order, else in the newest pool that has one. Only ends that nothing names or keeps and where
  // `bytes` can be written now.
  std::optional<FreeEnd> FindEnd(LayerHead owner, std::int64_t bytes,
                                 std::span<const Place> preferred,
                                 const WriteCheck& is_being_written);
  // Keeps an end for a part that is to come, from FindEnd, until the result is gone. The pool may
  // be a fresh one, which then belongs to `owner`. REQUIRES: nothing else keeps it.
  std::shared_ptr<void> Keep(LayerHead owner, const ExtentRef& pool, Direction direction);
  enum class EndState {
    kFree,   // a part of `bytes` can be written there now
    kBusy,   // later
    kTaken,  // something names it, or the part at the other end leaves less room
  };
  // For who keeps it.
  EndState StateOf(const ExtentRef& pool, Direction direction, std::int64_t bytes,
                   const WriteCheck& is_being_written) const;

  // ---- rule 6: a page has one writer, from the read before its write to the write's end ----
  // Whether `count` entries behind those of the part must wait: a placing holds the pool, or a page
  // that they go to is being written. A write to other pages of the pool is no reason to wait, and
  // neither is a read: the bytes that it is about do not change.
  bool IsBusy(const Part& part, std::int64_t entry_bytes, std::int64_t count,
              const WriteCheck& is_being_written) const;
  // Keeps other placings from the pool until the result is gone: from the read of its pages to the
  // start of the write. REQUIRES: nothing else holds it.
  std::shared_ptr<void> HoldForPlacing(const ExtentRef& pool);
  // Pages that `count` entries behind those of the part share with what is named in the pool. They
  // are read and checked before they are written again.
  std::vector<PageIndex> PagesToCheck(const Part& part, std::int64_t entry_bytes,
                                      std::int64_t count) const;
  // Whether both parts' bytes in those pages pass their checks. REQUIRES: the pages are in the set.
  bool AreIntact(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                 std::int64_t count, const PageSet& pages) const;
  // A page of it failed its check: no new part begins there.
  void NoteDamage(const Extent& pool);

  // ---- checkpoints ----
  struct Changes {
    std::vector<ExtentRef> named;     // pools that the rows begin to name
    std::vector<ExtentRef> released;  // and cease to name
    std::vector<ExtentRef> dropped;   // with an end that they cease to name: kept until the commit
  };
  // What differs since the last call, at a cut.
  Changes TakeChanges();
  // The segment was sealed: its pools are written no more. REQUIRES: TakeChanges just before.
  void Clear();

  std::int64_t pool_count() const { return packed_.count(); }
  std::int64_t memory_bytes() const;

  bool TakeBack(const Extent& extent) override;

 private:
  // What is named at one end.
  struct End {
    PartId part;             // 0: nothing is
    std::int64_t bytes = 0;  // the longest that it was: every older count is a prefix of it
    // Of the page that its last entry ends in, the only one that the other end's part can share.
    // None: the row has too few checksums.
    std::optional<std::uint32_t> last_crc;
    bool by_row = false;  // a row in memory names it

    bool used() const { return part.value() != 0; }
  };
  struct Pool {
    PageIndex first;
    std::int64_t page_count = 0;
    LayerHead owner;
    std::array<End, 2> ends;  // low, high
    bool recorded = false;    // the last cut's rows named it
    bool committed = false;   // as in Extent; while there is one that was changed, it has the truth
    bool damaged = false;

    std::int64_t size_bytes() const { return page_count * kPageBytes; }
    // Parts that rows in memory name.
    int row_count() const { return (ends[0].by_row ? 1 : 0) + (ends[1].by_row ? 1 : 0); }
  };
  // What exists of a pool outside of this table.
  struct Live {
    std::weak_ptr<Extent> extent;
    bool held = false;
    std::array<bool, 2> kept{};  // low, high
  };

  static std::size_t Slot(Direction direction) { return direction == Direction::kUp ? 0 : 1; }
  std::optional<Pool> Find(PageIndex first) const;
  Pool At(const Extent& extent) const;  // REQUIRES: the table has it
  void Store(const Pool& pool);
  const Live* FindLive(PageIndex first) const;
  // The pool of a part that comes, which may be fresh.
  Pool Enter(LayerHead owner, const ExtentRef& extent);
  ExtentRef ExtentOf(PageIndex first, std::int64_t page_count);
  // The pool is the table's no more: its pages go, or belong to the Extent if there is one.
  void Remove(const Pool& pool);
  void FreeUncommitted();
  void FreeIfOwned(const Pool& pool);
  void ForgetLiveIfNothing(PageIndex first);
  // Forgets a pool that has no part, never had one, and that nobody keeps or holds any more.
  void ForgetUnused(PageIndex first);
  static End EndOf(std::int64_t entry_bytes, const StoredPart& part);
  void UpdateHalfFull(const Pool& pool);
  bool IsBusy(const Pool& pool, const ByteRange& range, const WriteCheck& is_being_written) const;
  std::optional<FreeEnd> EndIn(const Place& place, LayerHead owner, std::int64_t bytes,
                               const WriteCheck& is_being_written);
  EndState StateOf(const Pool& pool, Direction direction, std::int64_t bytes,
                   const WriteCheck& is_being_written) const;

  const std::shared_ptr<FreeMap> map_;
  PackedMap packed_;  // by first page
  std::map<PageIndex, Live> live_;
  std::map<LayerHead, std::vector<PageIndex>> half_full_;  // pools with one live part, newest last
  std::set<PageIndex> touched_;                            // since the last cut
  std::vector<ExtentRef> dropped_;                         // since the last cut
  std::set<PageIndex> with_dropped_end_;  // that is in use until the pool's Extent is gone
};

}  // namespace cairn::kv
