#include "kv-node/layout/direct_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "common/io/aligned_buffer.h"
#include "kv-node/layout/file_calls.h"

namespace cairn::kv {
namespace {

// What the file system says about direct I/O (Linux 6.1 or later); no value when it says nothing.
std::optional<DirectIo> AskFileSystem(int fd) {
#ifdef STATX_DIOALIGN
  struct statx file {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &file) != 0) return std::nullopt;
  if ((file.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  if (file.stx_dio_offset_align == 0) return DirectIo{false, "the file system has no direct I/O"};
  if (file.stx_dio_offset_align > kIoAlignmentBytes || file.stx_dio_mem_align > kIoAlignmentBytes) {
    return DirectIo{
        false, fmt::format("direct I/O needs an alignment of {} bytes", file.stx_dio_offset_align)};
  }
#else
  static_cast<void>(fd);
#endif
  return std::nullopt;
}

// Whether the page cache holds this page of the file.
absl::StatusOr<bool> IsCached(int fd, off_t offset, const std::string& path) {
  constexpr std::size_t kSize = kIoAlignmentBytes;
  void* page = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, offset);
  if (page == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mmap {}", path));
  unsigned char resident = 0;
  const int result = mincore(page, kSize, &resident);
  const int error_number = errno;
  munmap(page, kSize);
  if (result != 0) return ErrnoStatus(error_number, fmt::format("mincore {}", path));
  return (resident & 1U) != 0;
}

// A page that the page cache does not hold, of some all over the file; no value: of these it holds
// all.
absl::StatusOr<std::optional<off_t>> FindUncached(int fd, const std::string& path) {
  constexpr off_t kLooks = 64;
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t size_bytes, FileSize(fd, path));
  const off_t page_count = size_bytes / kIoAlignmentBytes;
  const off_t step = std::max<off_t>(page_count / kLooks, 1);
  for (off_t page = 0; page < page_count; page += step) {
    const off_t offset = page * kIoAlignmentBytes;
    CAIRN_ASSIGN_OR_RETURN(const bool cached, IsCached(fd, offset, path));
    if (!cached) return std::optional<off_t>(offset);
  }
  return std::optional<off_t>();
}

}  // namespace

absl::StatusOr<int> OpenPreferDirect(const std::string& path, int flags, unsigned mode) {
  int fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, mode);
  if (fd < 0 && errno == EINVAL) fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("open {}", path));
  return fd;
}

absl::StatusOr<DirectIo> VerifyDirect(int fd, const std::string& path) {
  if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) {
    return DirectIo{false, "the file system refuses O_DIRECT"};
  }
  if (std::optional<DirectIo> answer = AskFileSystem(fd)) return *std::move(answer);
  // Only clean pages can be dropped from the cache.
  if (fdatasync(fd) != 0) return ErrnoStatus(errno, fmt::format("fdatasync {}", path));
  // Of all of the file: the cache holds what was written together, as by a copy, in one piece, and
  // drops none of it for a part.
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  // What is in use elsewhere stays, and says nothing about reads.
  CAIRN_ASSIGN_OR_RETURN(const std::optional<off_t> offset, FindUncached(fd, path));
  if (!offset) return DirectIo{false, "the page cache keeps the file whatever is done"};
  AlignedBuffer page(kIoAlignmentBytes);
  CAIRN_RETURN_IF_ERROR(Annotate(ReadWhole(fd, page.span(), *offset, path), "with O_DIRECT"));
  CAIRN_ASSIGN_OR_RETURN(const bool cached, IsCached(fd, *offset, path));
  if (cached) return DirectIo{false, "a read with O_DIRECT left the page in the page cache"};
  return DirectIo{true, "a read with O_DIRECT left nothing in the page cache"};
}

}  // namespace cairn::kv
