#include "kv-node/engine/page_io.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

// Larger requests gain nothing on any device that was measured, and smaller ones can be in flight
// together.
constexpr std::int64_t kRequestPagesMax = 64;

}  // namespace

const std::byte* PageSet::At(PageIndex page) const {
  const auto found = std::lower_bound(pages_.begin(), pages_.end(), page);
  CAIRN_CHECK(found != pages_.end() && *found == page);
  return buffer_->data() + (found - pages_.begin()) * kPageBytes;
}

std::span<const std::byte> PageSet::Bytes(const Extent& extent, ByteRange range) const {
  const PageIndex first(extent.first().value() + range.begin / kPageBytes);
  const std::byte* begin = At(first) + range.begin % kPageBytes;
  return {begin, static_cast<std::size_t>(range.end - range.begin)};
}

bool PartIsIntact(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                  std::int64_t count, const PageSet& pages) {
  for (const PagePiece& piece : PiecesOf(part, entry_bytes, 0, count)) {
    if (pages.Failed(piece.page) || !PieceIsIntact(store, part, piece, pages.Page(piece.page))) {
      LogWarning("lost part={} page={} page_number={} read_error={}", part.id, piece.page,
                 piece.page_number, pages.Failed(piece.page));
      return false;
    }
  }
  return true;
}

struct PageIo::ReadJob {
  std::vector<PageIndex> pages;
  std::vector<bool> from_memory;
  PageSet set;
  ReadDone done;
  int open_count = 0;
};

PageIo::PageIo(Device& device) : device_(device), buffers_(std::make_shared<BufferPool>()) {
  buffers_->SetWake([this] { device_.Wake(); });
}

PageIo::~PageIo() { buffers_->SetWake(nullptr); }

void PageIo::Read(std::vector<PageIndex> pages, ReadCause cause, ReadDone done) {
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  auto job = std::make_shared<ReadJob>();
  job->pages = std::move(pages);
  job->done = std::move(done);
  SharedBuffer buffer =
      buffers_->MakeForRead(static_cast<std::int64_t>(job->pages.size()) * kPageBytes);
  job->set = PageSet(job->pages, buffer);
  job->from_memory.resize(job->pages.size());
  for (std::size_t i = 0; i < job->pages.size(); ++i) {
    const auto writing = in_flight_.find(job->pages[i]);
    if (writing == in_flight_.end()) continue;
    std::memcpy(buffer->data() + static_cast<std::int64_t>(i) * kPageBytes,
                writing->second.buffer->data() + writing->second.offset_bytes, kPageBytes);
    job->from_memory[i] = true;
  }
  StartRuns(job, cause);
  if (job->open_count == 0) {
    ready_.push_back([job] { job->done(std::move(job->set)); });
  }
}

void PageIo::StartRuns(const std::shared_ptr<ReadJob>& job, ReadCause cause) {
  const std::size_t count = job->pages.size();
  for (std::size_t i = 0; i < count;) {
    if (job->from_memory[i]) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < count && !job->from_memory[end] &&
           job->pages[end].value() == job->pages[end - 1].value() + 1 &&
           static_cast<std::int64_t>(end - i) < kRequestPagesMax) {
      ++end;
    }
    const auto bytes = static_cast<std::int64_t>(end - i) * kPageBytes;
    CountRead(bytes, cause);
    ++job->open_count;
    device_.SubmitRead(
        DeviceOffset(job->pages[i].value() * kPageBytes),
        job->set.buffer()->span().subspan(i * kPageBytes, static_cast<std::size_t>(bytes)),
        [job, i, end](const absl::Status& status) {
          if (!status.ok()) {
            LogError("read failed first_page={} page_count={} error=\"{}\"", job->pages[i], end - i,
                     ToStd(status.message()));
            for (std::size_t p = i; p < end; ++p) job->set.MarkFailed(job->pages[p]);
          }
          if (--job->open_count == 0) job->done(std::move(job->set));
        });
    i = end;
  }
}

void PageIo::CountRead(std::int64_t bytes, ReadCause cause) {
  if (cause == ReadCause::kFetch) {
    stats_.read_fetch_bytes += bytes;
    ++stats_.read_fetch_count;
  } else {
    stats_.read_place_bytes += bytes;
  }
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
  for (std::int64_t i = 0; i < count;) {
    if (const auto writing = in_flight_.find(page_at(i)); writing != in_flight_.end()) {
      std::memcpy(bytes_at(i, 1).data(),
                  writing->second.buffer->data() + writing->second.offset_bytes, kPageBytes);
      ++i;
      continue;
    }
    std::int64_t end = i + 1;
    while (end < count && end - i < kRequestPagesMax && !in_flight_.contains(page_at(end))) ++end;
    CountRead((end - i) * kPageBytes, cause);
    ++job->open_count;
    device_.SubmitRead(DeviceOffset(page_at(i).value() * kPageBytes), bytes_at(i, end - i),
                       [job, begin = page_at(i), pages = end - i](const absl::Status& status) {
                         if (!status.ok()) {
                           LogError("read failed first_page={} page_count={} error=\"{}\"", begin,
                                    pages, ToStd(status.message()));
                           for (std::int64_t p = 0; p < pages; ++p) {
                             job->failed.insert(PageIndex(begin.value() + p));
                           }
                         }
                         if (--job->open_count == 0) job->done(job->failed);
                       });
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
  (cause == WriteCause::kPool  ? stats_.write_pool_bytes
   : cause == WriteCause::kLog ? stats_.write_log_bytes
                               : stats_.write_relog_bytes) += buffer->size_bytes();
  const std::span<const std::byte> bytes = buffer->span();
  device_.SubmitWrite(DeviceOffset(first.value() * kPageBytes), bytes,
                      [this, first, count, buffer = std::move(buffer),
                       done = std::move(done)](absl::Status status) {
                        for (std::int64_t i = 0; i < count; ++i) {
                          in_flight_.erase(PageIndex(first.value() + i));
                        }
                        done(std::move(status));
                      });
}

void PageIo::Flush(WriteDone done) { device_.SubmitFlush(std::move(done)); }

bool PageIo::RunReady() {
  std::vector<std::function<void()>> ready;
  ready.swap(ready_);
  for (const std::function<void()>& run : ready) run();
  return !ready.empty();
}

}  // namespace cairn::kv
