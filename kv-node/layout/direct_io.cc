#include "kv-node/layout/direct_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "common/io/aligned_buffer.h"

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

// Whether the page cache holds the first page of the file.
absl::StatusOr<bool> FirstPageIsCached(int fd, const std::string& path) {
  constexpr std::size_t kSize = kIoAlignmentBytes;
  void* page = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mmap {}", path));
  unsigned char resident = 0;
  const int result = mincore(page, kSize, &resident);
  const int error_number = errno;
  munmap(page, kSize);
  if (result != 0) return ErrnoStatus(error_number, fmt::format("mincore {}", path));
  return (resident & 1U) != 0;
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
  posix_fadvise(fd, 0, kIoAlignmentBytes, POSIX_FADV_DONTNEED);
  AlignedBuffer page(kIoAlignmentBytes);
  ssize_t got = -1;
  do {
    got = pread(fd, page.data(), kIoAlignmentBytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return ErrnoStatus(errno,
                       fmt::format("read {} bytes of {} with O_DIRECT", kIoAlignmentBytes, path));
  }
  CAIRN_ASSIGN_OR_RETURN(const bool cached, FirstPageIsCached(fd, path));
  if (cached) return DirectIo{false, "a read with O_DIRECT left the page in the page cache"};
  return DirectIo{true, "a read with O_DIRECT left nothing in the page cache"};
}

}  // namespace cairn::kv
