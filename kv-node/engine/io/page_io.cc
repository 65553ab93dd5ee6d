#include "kv-node/engine/io/page_io.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

// Larger requests gain nothing on any device that was measured, and smaller ones can be in flight
// together.
constexpr std::int64_t kRequestPagesMax = 64;
// Asked pages and holes of one read: buffers up to this size are kept for the next read, and
// mapping a fresh one costs more than its holes gain.
constexpr std::int64_t kReadBytesWithHolesMax = BufferPool::kKeptBufferBytesMax;

IoClass ClassOf(ReadCause cause) {
  switch (cause) {
    case ReadCause::kFetch:
    case ReadCause::kIndex:
      return IoClass::kDemand;
    case ReadCause::kDefragment:
      return IoClass::kDefragment;
    case ReadCause::kPlace:
      break;
  }
  return IoClass::kWriteBack;
}

IoClass ClassOf(WriteCause cause) {
  return cause == WriteCause::kDefragment ? IoClass::kDefragment : IoClass::kWriteBack;
}

}  // namespace

std::int64_t PageSet::OffsetOf(PageIndex page) const {
  const auto found = std::lower_bound(pages_.begin(), pages_.end(), page);
  CAIRN_CHECK(found != pages_.end() && *found == page);
  return (found - pages_.begin()) * kPageBytes;
}

std::span<const std::byte> PageSet::Bytes(const Extent& extent, ByteRange range) const {
  const PageIndex first(extent.first().value() + range.begin / kPageBytes);
  const std::byte* begin = At(first) + range.begin % kPageBytes;
  return {begin, static_cast<std::size_t>(range.end - range.begin)};
}

PartState CheckPart(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                    std::int64_t count, const PageSet& pages) {
  for (const PagePiece& piece : PiecesOf(part, entry_bytes, 0, count)) {
    const bool failed = pages.Failed(piece.page);
    if (!failed && PieceIsIntact(store, part, piece, pages.Page(piece.page))) continue;
    LogWarning("{} part={} page={} page_number={}", failed ? "unreadable" : "lost", part.id,
               piece.page, piece.page_number);
    return failed && !FailPoint("a disk that does not answer is taken for damage")
               ? PartState::kUnreadable
               : PartState::kDamaged;
  }
  return PartState::kIntact;
}

void SetCrcs(const StoreId& store, Part& part, std::int64_t entry_bytes, std::int64_t first,
             std::int64_t count, const AlignedBuffer& image, std::int64_t image_begin) {
  for (const PagePiece& piece : PiecesOf(part, entry_bytes, first, count)) {
    const auto number = static_cast<std::size_t>(piece.page_number);
    if (part.crcs.size() <= number) part.crcs.resize(number + 1);
    const std::int64_t page_begin =
        (piece.page.value() - part.extent->first().value()) * kPageBytes - image_begin;
    part.crcs[number] =
        PartCrc(store, part.id, piece.page_number,
                image.span().subspan(static_cast<std::size_t>(page_begin + piece.begin),
                                     static_cast<std::size_t>(piece.end - piece.begin)));
  }
}

std::vector<PageIndex> PagesOf(const std::vector<PartRead>& parts) {
  std::vector<PageIndex> pages;
  for (const PartRead& read : parts) AddPages(read.part, read.entry_bytes, read.count, pages);
  return pages;
}

PageIo::Doubt DoubtOf(const StoreId& store, std::vector<PartRead> parts) {
  return [store, parts = std::move(parts)](const PageSet& pages) {
    std::vector<PageIndex> damaged;
    for (const PartRead& read : parts) {
      for (const PagePiece& piece : PiecesOf(read.part, read.entry_bytes, 0, read.count)) {
        if (pages.Failed(piece.page)) continue;
        if (PieceIsIntact(store, read.part, piece, pages.Page(piece.page))) continue;
        damaged.push_back(piece.page);
      }
    }
    return damaged;
  };
}

struct PageIo::ReadJob {
  std::vector<PageIndex> asked;
  ReadCause cause = ReadCause::kFetch;
  PageSet set;
  ReadDone done;
  Doubt doubt;
  std::set<PageIndex> failed_before;
  std::set<PageIndex> doubted_before;
  int open_count = 0;

  std::span<const PageIndex> AskedIn(const Run& run) const {
    const auto begin = std::lower_bound(asked.begin(), asked.end(), run.first);
    return {begin, std::lower_bound(begin, asked.end(), run.end())};
  }
};

PageIo::PageIo(Device& device, const MergeLimits& merge, KvStats& counts)
    : device_(device), merge_(merge), buffers_(std::make_shared<BufferPool>()), counts_(counts) {
  buffers_->SetWake([this] { device_.Wake(); });
}

PageIo::~PageIo() { buffers_->SetWake(nullptr); }

void PageIo::Read(std::vector<PageIndex> pages, ReadCause cause, ReadDone done, Doubt doubt) {
  CAIRN_CHECK(!pages.empty());
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  const std::vector<Run> runs = MergeOverHoles(RunsOf(pages));
  auto job = std::make_shared<ReadJob>();
  job->asked = std::move(pages);
  job->cause = cause;
  job->done = std::move(done);
  job->doubt = std::move(doubt);
  // A run with holes brings pages that were not asked for.
  std::vector<PageIndex> brought;
  for (const Run& run : runs) {
    for (std::int64_t i = 0; i < run.page_count; ++i) brought.emplace_back(run.first.value() + i);
  }
  const SharedBuffer buffer = buffers_->MakeForRead(std::ssize(brought) * kPageBytes);
  job->set = PageSet(std::move(brought), buffer);
  for (const Run& run : runs) StartRun(job, run);
}

// The device may give what it did not give a moment ago, and what came wrong may come right.
void PageIo::FinishReads(const std::shared_ptr<ReadJob>& job) {
  std::set<PageIndex> again;
  for (const PageIndex page : job->set.failed()) {
    if (job->failed_before.insert(page).second) again.insert(page);
  }
  if (job->doubt) {
    for (const PageIndex page : job->doubt(job->set)) {
      if (job->doubted_before.insert(page).second) again.insert(page);
    }
  }
  if (again.empty()) return job->done(std::move(job->set));
  job->set.ForgetFailed(again);
  for (const Run& run : RunsOf(std::vector(again.begin(), again.end()))) StartRun(job, run);
}

std::vector<PageIo::Run> PageIo::RunsOf(std::span<const PageIndex> pages) {
  std::vector<Run> runs;
  for (const PageIndex page : pages) {
    if (!runs.empty() && runs.back().end() == page && runs.back().page_count < kRequestPagesMax) {
      ++runs.back().page_count;
    } else {
      runs.push_back({page, 1});
    }
  }
  return runs;
}

std::vector<PageIo::Run> PageIo::MergeOverHoles(const std::vector<Run>& pieces) const {
  std::vector<Run> runs;
  std::int64_t asked_bytes = 0;
  for (const Run& piece : pieces) asked_bytes += piece.page_count * kPageBytes;
  std::int64_t hole_bytes_left = std::min(kHoleBytesMax, kReadBytesWithHolesMax - asked_bytes);
  for (const Run& piece : pieces) {
    if (!runs.empty()) {
      Run& run = runs.back();
      const std::int64_t hole_pages = piece.first.value() - run.end().value();
      const std::int64_t hole_bytes = hole_pages * kPageBytes;
      // A page that is being written must not be read from the device over its copy in the buffer.
      if (hole_pages > 0 && hole_bytes <= std::min(merge_.gap_bytes, hole_bytes_left) &&
          piece.page_count * kPageBytes <= merge_.piece_bytes_max &&
          run.page_count + hole_pages + piece.page_count <= kRequestPagesMax &&
          !AnyBeingWritten(run.end(), piece.first)) {
        run.page_count += hole_pages + piece.page_count;
        run.has_holes = true;
        hole_bytes_left -= hole_bytes;
        continue;
      }
    }
    runs.push_back(piece);
  }
  return runs;
}

bool PageIo::AnyBeingWritten(PageIndex first, PageIndex end) const {
  const auto found = in_flight_.lower_bound(first);
  return found != in_flight_.end() && found->first < end;
}

void PageIo::StartRun(const std::shared_ptr<ReadJob>& job, const Run& run) {
  if (run.has_holes) NoteHoles(run.page_count - std::ssize(job->AskedIn(run)));
  ++job->open_count;
  const auto offset = static_cast<std::size_t>(job->set.OffsetOf(run.first));
  const auto size = static_cast<std::size_t>(run.page_count * kPageBytes);
  ReadRun(run.first, job->set.buffer()->span().subspan(offset, size), job->cause,
          [this, job, run](const std::set<PageIndex>& failed) { FinishRun(job, run, failed); });
}

void PageIo::FinishRun(const std::shared_ptr<ReadJob>& job, const Run& run,
                       const std::set<PageIndex>& failed) {
  if (run.has_holes && !failed.empty()) {
    // What failed may lie in a hole, which nobody asked for.
    for (const Run& piece : RunsOf(job->AskedIn(run))) StartRun(job, piece);
  } else {
    for (const PageIndex page : failed) job->set.MarkFailed(page);
  }
  if (--job->open_count == 0) FinishReads(job);
}

void PageIo::CountRead(std::int64_t bytes, ReadCause cause) {
  switch (cause) {
    case ReadCause::kFetch:
      counts_.read_fetch_bytes += bytes;
      ++counts_.read_fetch_count;
      break;
    case ReadCause::kIndex:
      counts_.read_index_bytes += bytes;
      break;
    case ReadCause::kPlace:
      counts_.read_place_bytes += bytes;
      break;
    case ReadCause::kDefragment:
      counts_.read_defragment_bytes += bytes;
      break;
  }
}

void PageIo::CountWrite(std::int64_t bytes, WriteCause cause) {
  switch (cause) {
    case WriteCause::kSplit:
      counts_.write_split_bytes += bytes;
      [[fallthrough]];
    case WriteCause::kPool:
      counts_.write_pool_bytes += bytes;
      break;
    case WriteCause::kLog:
      counts_.write_log_bytes += bytes;
      break;
    case WriteCause::kIndex:
      counts_.write_index_bytes += bytes;
      break;
    case WriteCause::kDefragment:
      counts_.write_defragment_bytes += bytes;
      break;
  }
}

void PageIo::CountAsRelog(std::int64_t bytes) {
  counts_.write_log_bytes -= bytes;
  counts_.write_relog_bytes += bytes;
}

struct PageIo::RunJob {
  std::set<PageIndex> failed;
  ReadRunDone done;
  int open_count = 0;
};

void PageIo::ReadRun(PageIndex first, std::span<std::byte> memory, ReadCause cause,
                     ReadRunDone done) {
  auto job = std::make_shared<RunJob>();
  job->done = std::move(done);
  const std::int64_t count = std::ssize(memory) / kPageBytes;
  const auto page_at = [&](std::int64_t i) { return PageIndex(first.value() + i); };
  const auto bytes_at = [&](std::int64_t i, std::int64_t pages) {
    return memory.subspan(static_cast<std::size_t>(i * kPageBytes),
                          static_cast<std::size_t>(pages * kPageBytes));
  };
  const auto in_flight = [&](std::int64_t i) -> const InFlight* {
    const auto found = in_flight_.find(page_at(i));
    const bool is_written =
        found != in_flight_.end() &&
        !FailPoint("a page that is being written is read from the device (rule 6)");
    return is_written ? &found->second : nullptr;
  };
  for (std::int64_t i = 0; i < count;) {
    if (const InFlight* writing = in_flight(i)) {
      std::memcpy(bytes_at(i, 1).data(), writing->buffer->data() + writing->offset_bytes,
                  kPageBytes);
      ++i;
      continue;
    }
    std::int64_t end = i + 1;
    while (end < count && end - i < kRequestPagesMax && in_flight(end) == nullptr) ++end;
    CountRead((end - i) * kPageBytes, cause);
    ++job->open_count;
    device_.SubmitRead(
        DeviceOffset(page_at(i).value() * kPageBytes), bytes_at(i, end - i),
        [job, begin = page_at(i), pages = end - i](const absl::Status& status) {
          if (!status.ok()) {
            LogError("read failed first_page={} page_count={} error=\"{}\"", begin, pages,
                     ToStd(status.message()));
            for (std::int64_t p = 0; p < pages; ++p) {
              job->failed.insert(PageIndex(begin.value() + p));
            }
          }
          if (--job->open_count == 0) job->done(job->failed);
        },
        ClassOf(cause));
    i = end;
  }
  if (job->open_count == 0) {
    ready_.push_back([job] { job->done(job->failed); });
  }
}

void PageIo::Write(PageIndex first, SharedBuffer buffer, WriteCause cause, WriteDone done) {
  const std::int64_t count = buffer->size_bytes() / kPageBytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const PageIndex page(first.value() + i);
    const bool fresh = in_flight_.emplace(page, InFlight{buffer, i * kPageBytes}).second;
    CAIRN_CHECK(fresh);
  }
  if (on_write_) on_write_(first, buffer->span());
  CountWrite(buffer->size_bytes(), cause);
  const std::span<const std::byte> bytes = buffer->span();
  device_.SubmitWrite(
      DeviceOffset(first.value() * kPageBytes), bytes,
      [this, first, count, buffer = std::move(buffer),
       done = std::move(done)](absl::Status status) {
        for (std::int64_t i = 0; i < count; ++i) {
          in_flight_.erase(PageIndex(first.value() + i));
        }
        done(std::move(status));
      },
      ClassOf(cause));
}

void PageIo::Flush(WriteDone done) { device_.SubmitFlush(std::move(done), IoClass::kWriteBack); }

bool PageIo::RunReady() {
  std::vector<std::function<void()>> ready;
  ready.swap(ready_);
  for (const std::function<void()>& run : ready) run();
  return !ready.empty();
}

}  // namespace cairn::kv
