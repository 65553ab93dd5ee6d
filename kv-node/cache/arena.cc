#include "kv-node/cache/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/check.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kGranulesWanted = 8;

std::int64_t GranuleBytes(std::int64_t bytes_max) {
  const std::int64_t wanted = bytes_max / kGranulesWanted / kPageBytes * kPageBytes;
  const std::int64_t usual = std::clamp(wanted, kGranuleBytesMin, kGranuleBytesMax);
  // A large arena has larger granules rather than more of them.
  const std::int64_t needed = bytes_max / kGranuleCountMax / kPageBytes * kPageBytes + kPageBytes;
  return std::max(usual, needed);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ArenaGranule>> ArenaGranule::Create(std::int32_t id,
                                                                   std::int64_t size_bytes) {
  const int fd = ::memfd_create("cairn-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ErrnoStatus(errno, "create shared memory");
  std::shared_ptr<ArenaGranule> granule(new ArenaGranule(id, size_bytes, fd));
  if (::ftruncate(fd, size_bytes) != 0) return ErrnoStatus(errno, "size shared memory");
  void* data = ::mmap(nullptr, static_cast<std::size_t>(size_bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  granule->data_ = static_cast<std::byte*>(data);
  // Behind the mapping above, which stays writable: a client's descriptor is of the same file and
  // can neither be mapped for writing nor written to any more.
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) !=
      0) {
    return ErrnoStatus(errno, "seal shared memory");
  }
  return granule;
}

ArenaGranule::~ArenaGranule() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_bytes_));
  ::close(fd_);
}

Arena::Arena(std::int64_t bytes_max, GranuleWatch watch)
    : granule_bytes_(GranuleBytes(bytes_max)),
      granule_count_max_(std::max<std::int64_t>(1, bytes_max / granule_bytes_)),
      watch_(std::move(watch)) {
  CAIRN_CHECK_GE(bytes_max, kGranuleBytesMin);
}

std::optional<ArenaBlock> Arena::AllocateIn(Pages& pages, std::int64_t page_count) {
  const std::optional<PageIndex> first = pages.map.TryAllocate(page_count);
  if (!first) return std::nullopt;
  return ArenaBlock{pages.granule, first->value(), page_count};
}

std::optional<ArenaBlock> Arena::Allocate(std::int64_t page_count) {
  CAIRN_CHECK_GE(page_count, 1);
  for (auto& [id, pages] : pages_) {
    if (std::optional<ArenaBlock> block = AllocateIn(pages, page_count)) return block;
  }
  if (page_count > block_pages_max() || !Grow()) return std::nullopt;
  return AllocateIn(pages_.rbegin()->second, page_count);
}

std::optional<ArenaBlock> Arena::AllocateNear(const ArenaBlock& freed, std::int64_t page_count) {
  const auto found = pages_.find(freed.granule->id());
  return found == pages_.end() ? std::nullopt : AllocateIn(found->second, page_count);
}

bool Arena::Grow() {
  if (refused_ || static_cast<std::int64_t>(pages_.size()) >= granule_count_max_) return false;
  absl::StatusOr<std::shared_ptr<ArenaGranule>> granule =
      ArenaGranule::Create(++last_id_, granule_bytes_);
  if (!granule.ok()) {
    refused_ = true;
    LogWarning("arena stays at {} granules of {} bytes error=\"{}\"", pages_.size(), granule_bytes_,
               Message(granule.status()));
    return false;
  }
  if (watch_.comes) watch_.comes((*granule)->memory());
  pages_.emplace(last_id_, Pages{*granule, FreeMap(granule_bytes_ / kPageBytes,
                                                   ArenaTablePages(granule_bytes_))});
  MutexLock lock(mutex_);
  granules_.push_back(*std::move(granule));
  return true;
}

void Arena::Free(const ArenaBlock& block) {
  const auto found = pages_.find(block.granule->id());
  CAIRN_CHECK(found != pages_.end());
  found->second.map.Free(PageIndex(block.first_page), block.page_count);
}

void Arena::Trim() {
  for (auto it = pages_.begin(); it != pages_.end();) {
    const bool empty = it->second.map.used_count() == ArenaTablePages(granule_bytes_);
    if (empty && watch_.goes) watch_.goes(it->second.granule->memory());
    it = empty ? pages_.erase(it) : std::next(it);
  }
  refused_ = false;
  MutexLock lock(mutex_);
  std::erase_if(granules_, [&](const auto& granule) { return !pages_.contains(granule->id()); });
}

std::int64_t Arena::free_bytes() const {
  const std::int64_t may_be_made =
      refused_ ? 0 : granule_count_max_ - static_cast<std::int64_t>(pages_.size());
  std::int64_t page_count = may_be_made * block_pages_max();
  for (const auto& [id, pages] : pages_) {
    page_count += pages.map.page_count() - pages.map.used_count();
  }
  return page_count * kPageBytes;
}

std::int64_t Arena::size_bytes() const {
  return static_cast<std::int64_t>(pages_.size()) * granule_bytes_;
}

std::vector<std::shared_ptr<const ArenaGranule>> Arena::granules() const {
  MutexLock lock(mutex_);
  return granules_;
}

}  // namespace cairn::kv
