#include "kv-node/engine/defragment/extent_mover.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/io/aligned_buffer.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/layout/index_run.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

struct Move {
  PageIndex from;
  PageIndex to;
  std::int64_t page_count = 0;
};

// Long ones first: short ones find room in what is left, and not the other way round.
enum class Length : std::uint8_t { kLong, kShort };

Length LengthOf(const StoredPart& part) {
  return part.page_count > kPoolPagesMax ? Length::kLong : Length::kShort;
}

std::vector<Part> WithoutExtents(std::vector<StoredPart> stored) {
  std::vector<Part> parts;
  parts.reserve(stored.size());
  for (StoredPart& part : stored) parts.emplace_back(std::move(part), nullptr);
  return parts;
}

// Reads and writes through a device, and waits for it.
class Copier {
 public:
  explicit Copier(Device& device) : device_(device), buffer_(kMoveBufferBytes) {}

  absl::Status Add(const Move& move) {
    for (std::int64_t done = 0; done < move.page_count;) {
      if (used_bytes_ == buffer_.size_bytes()) CAIRN_RETURN_IF_ERROR(CopyAll());
      const std::int64_t count =
          std::min(move.page_count - done, (buffer_.size_bytes() - used_bytes_) / kPageBytes);
      pieces_.push_back(
          {PageIndex(move.from.value() + done), PageIndex(move.to.value() + done), count});
      used_bytes_ += count * kPageBytes;
      done += count;
    }
    return absl::OkStatus();
  }

  // What was added is durable at its new places.
  absl::Status Finish() {
    CAIRN_RETURN_IF_ERROR(CopyAll());
    device_.SubmitFlush([this](const absl::Status& status) { status_.Update(status); });
    return Drain();
  }

 private:
  absl::Status CopyAll() {
    const auto note = [this](const absl::Status& status) { status_.Update(status); };
    ForEachPiece([&](const Move& piece, std::span<std::byte> bytes) {
      device_.SubmitRead(DeviceOffset(piece.from.value() * kPageBytes), bytes, note);
    });
    CAIRN_RETURN_IF_ERROR(Drain());
    ForEachPiece([&](const Move& piece, std::span<std::byte> bytes) {
      device_.SubmitWrite(DeviceOffset(piece.to.value() * kPageBytes), bytes, note);
    });
    CAIRN_RETURN_IF_ERROR(Drain());
    pieces_.clear();
    used_bytes_ = 0;
    return absl::OkStatus();
  }

  template <typename Fn>
  void ForEachPiece(const Fn& fn) {
    std::size_t at = 0;
    for (const Move& piece : pieces_) {
      const auto size = static_cast<std::size_t>(piece.page_count * kPageBytes);
      fn(piece, buffer_.span().subspan(at, size));
      at += size;
    }
  }

  absl::Status Drain() {
    constexpr std::chrono::milliseconds kWait{100};
    while (device_.in_flight_count() > 0) device_.Poll(kWait);
    return status_;
  }

  Device& device_;
  AlignedBuffer buffer_;
  std::vector<Move> pieces_;
  std::int64_t used_bytes_ = 0;
  absl::Status status_;
};

class ExtentMover {
 public:
  ExtentMover(MetaStore& meta, Device& device, const MoveOptions& options)
      : meta_(meta), device_(device), options_(options), map_(options.page_count, kFirstDataPage) {}

  absl::StatusOr<MoveResult> Run() {
    std::set<SegmentId> segments;
    CAIRN_RETURN_IF_ERROR(LoadAllocation(meta_.reader(), map_,
                                         [&](const ParsedRegionKey& key, const RegionBits& bits) {
                                           for (const PageIndex page : PagesIn(key.region, bits)) {
                                             if (page.value() < options_.end) continue;
                                             segments.insert(key.segment);
                                             total_bytes_ += kPageBytes;
                                           }
                                           return absl::OkStatus();
                                         }));
    if (map_.used_count() <= options_.end) {
      for (const Length length : {Length::kLong, Length::kShort}) {
        for (const SegmentId segment : segments) {
          CAIRN_RETURN_IF_ERROR(MoveSegment(segment, length));
        }
      }
    }
    return MoveResult{moved_bytes_, map_.used_count(), map_.used_end()};
  }

 private:
  // Extents of one segment that are moved together, and the batch that says so.
  struct Round {
    std::map<PageIndex, Move> moves;  // by first page
    std::int64_t page_count = 0;
    bool is_full = false;
    MetaBatch batch;
  };

  absl::Status MoveSegment(SegmentId segment, Length length) {
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow row, LoadSegmentRow(meta_.reader(), segment));
    CAIRN_ASSIGN_OR_RETURN(regions_, LoadRegions(meta_.reader(), segment));
    for (bool more = true; more;) {
      Round round;
      CAIRN_RETURN_IF_ERROR(Annotate(Collect(segment, row.layout, length, round),
                                     fmt::format("move segment {}", segment)));
      if (round.moves.empty()) return absl::OkStatus();
      Copier copier(device_);
      for (const auto& [first, move] : round.moves) CAIRN_RETURN_IF_ERROR(copier.Add(move));
      CAIRN_RETURN_IF_ERROR(copier.Finish());
      CAIRN_RETURN_IF_ERROR(Commit(segment, round));
      if (options_.progress) {
        CAIRN_RETURN_IF_ERROR(
            options_.progress(std::min(moved_bytes_, total_bytes_), total_bytes_));
      }
      more = round.is_full;
    }
    return absl::OkStatus();
  }

  absl::Status Collect(SegmentId segment, const EntryLayout& layout, Length length, Round& round) {
    CAIRN_RETURN_IF_ERROR(meta_.reader().Scan(
        Family::kClusters, SegmentPrefix(segment),
        [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
          CAIRN_ASSIGN_OR_RETURN(const ParsedClusterRowKey key, ParseClusterRowKey(key_bytes));
          if (key.kind != ClusterRowKind::kParts && key.kind != ClusterRowKind::kCarried) {
            return absl::OkStatus();
          }
          if (key.key.head >= layout.head_count)
            return DataLoss("head {} is damaged", key.key.head);
          const std::int64_t entry_bytes = layout.EntryBytes(key.key.head);
          CAIRN_ASSIGN_OR_RETURN(std::vector<StoredPart> parts, DecodeParts(value, entry_bytes));
          CAIRN_ASSIGN_OR_RETURN(const bool moves, Place(parts, length, round));
          if (moves) {
            round.batch.Put(Family::kClusters, std::string(key_bytes),
                            EncodeParts(WithoutExtents(std::move(parts)), entry_bytes));
          }
          return absl::OkStatus();
        }));
    return meta_.reader().Scan(
        Family::kRuns, SegmentPrefix(segment),
        [&](std::string_view key, std::string_view value) -> absl::Status {
          CAIRN_ASSIGN_OR_RETURN(StoredIndexRun run, DecodeIndexRun(value));
          CAIRN_ASSIGN_OR_RETURN(const bool moves, Place(run.parts, length, round));
          if (moves) {
            round.batch.Put(Family::kRuns, std::string(key),
                            EncodeIndexRun({run.record_bytes, run.hides_older,
                                            WithoutExtents(std::move(run.parts))}));
          }
          return absl::OkStatus();
        });
  }

  // Gives those of the parts whose extent is moved their new place. False: none is.
  absl::StatusOr<bool> Place(std::vector<StoredPart>& parts, Length length, Round& round) {
    bool any = false;
    for (StoredPart& part : parts) {
      if (part.first_page.value() + part.page_count <= options_.end) continue;
      if (LengthOf(part) != length) continue;
      auto found = round.moves.find(part.first_page);
      if (found == round.moves.end()) {
        CAIRN_RETURN_IF_ERROR(CheckAllocated(part));
        const std::optional<PageIndex> to = NewPlace(part.page_count, round);
        if (!to) continue;
        const Move move{part.first_page, *to, part.page_count};
        found = round.moves.emplace(part.first_page, move).first;
      }
      if (found->second.page_count != part.page_count) {
        return DataLoss("an extent at page {} has two sizes", part.first_page);
      }
      part.first_page = found->second.to;
      any = true;
    }
    return any;
  }

  std::optional<PageIndex> NewPlace(std::int64_t page_count, Round& round) {
    if (page_count >= refused_page_count_) return std::nullopt;
    if (round.page_count > 0 && round.page_count + page_count > kMoveRoundPagesMax) {
      round.is_full = true;
      return std::nullopt;
    }
    const std::optional<PageIndex> to = map_.TryAllocateBelow(options_.end, page_count);
    if (to) {
      round.page_count += page_count;
    } else {
      refused_page_count_ = page_count;
    }
    return to;
  }

  // What is not in the segment's records may be another's.
  absl::Status CheckAllocated(const StoredPart& part) const {
    const std::optional<PageIndex> page =
        FirstUnrecorded(regions_, part.first_page, part.page_count);
    if (!page) return absl::OkStatus();
    return DataLoss(
        "a row names page {}, which the segment's allocation records do not have; "
        "`cairn-kv-util verify` says more",
        *page);
  }

  absl::Status Commit(SegmentId segment, Round& round) {
    AllocationEdit records(regions_);
    for (const auto& [first, move] : round.moves) {
      records.Mark(move.from, move.page_count, false);
      records.Mark(move.to, move.page_count, true);
    }
    records.PutTo(round.batch, segment);
    CAIRN_RETURN_IF_ERROR(meta_.CommitAndWait(std::move(round.batch)));
    for (const auto& [first, move] : round.moves) map_.Free(move.from, move.page_count);
    moved_bytes_ += round.page_count * kPageBytes;
    return absl::OkStatus();
  }

  MetaStore& meta_;
  Device& device_;
  const MoveOptions& options_;
  FreeMap map_;
  RegionBitsMap regions_;  // of the segment that is being moved
  std::int64_t total_bytes_ = 0;
  std::int64_t moved_bytes_ = 0;
  // No free range in front of the end is as long as this: what becomes free in between is less.
  std::int64_t refused_page_count_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

absl::StatusOr<MoveResult> MoveExtentsBelow(MetaStore& meta, Device& device,
                                            const MoveOptions& options) {
  return ExtentMover(meta, device, options).Run();
}

}  // namespace cairn::kv
