#include "kv-node/layout/file_space.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "common/io/aligned_buffer.h"
#include "kv-node/layout/file_calls.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPrefillBytes = std::int64_t{1} << 20;

absl::StatusOr<std::int64_t> FreeBytes(int fd, const std::string& path) {
  struct statvfs volume {};
  if (fstatvfs(fd, &volume) != 0) return ErrnoStatus(errno, fmt::format("statvfs {}", path));
  return static_cast<std::int64_t>(volume.f_bavail * volume.f_frsize);
}

absl::Status NoSpace(const std::string& path, std::int64_t end, std::int64_t needed_bytes,
                     std::int64_t free_bytes) {
  return ResourceExhausted(
      "make extent file {} {} bytes large: {} bytes are needed, {} are free on its file system; "
      "free some, or choose a smaller extent_file_bytes",
      path, end, needed_bytes, free_bytes);
}

// Says what is free when space was the reason.
absl::Status ExplainSpace(absl::Status status, int fd, const std::string& path, std::int64_t end,
                          std::int64_t needed_bytes) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  const absl::StatusOr<std::int64_t> free_bytes = FreeBytes(fd, path);
  if (!free_bytes.ok()) return status;
  return ResourceExhausted("{} ({})", Message(NoSpace(path, end, needed_bytes, *free_bytes)),
                           Message(status));
}

// Beyond RLIMIT_FSIZE or the file system's largest file.
absl::Status FillErrno(int error_number, const std::string& what) {
  if (error_number == EFBIG) {
    return ResourceExhausted("{}: the file size limit (ulimit -f) or the file system forbids it",
                             what);
  }
  return ErrnoStatus(error_number, what);
}

// False: the file system cannot reserve space.
absl::StatusOr<bool> Reserve(int fd, const std::string& path, std::int64_t begin,
                             std::int64_t size_bytes) {
  // fallocate() and not posix_fallocate(): that one's emulation writes single bytes, which O_DIRECT
  // refuses. It gives the file few, large extents before the zeros make them written ones.
  while (fallocate(fd, 0, begin, size_bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
    return FillErrno(errno, fmt::format("reserve {} bytes for {}", size_bytes, path));
  }
  return true;
}

// Behind `begin`, of which what lies before `from` is written already.
absl::Status WriteZeros(int fd, const std::string& path, std::int64_t begin, std::int64_t from,
                        const ExtentFileSize& size) {
  AlignedBuffer zeros(std::min(size.size_bytes - begin, kPrefillBytes));
  for (std::int64_t at = from; at < size.size_bytes;) {
    const auto count = static_cast<std::size_t>(std::min(zeros.size_bytes(), size.size_bytes - at));
    CAIRN_RETURN_IF_ERROR(WriteWhole(fd, zeros.span().first(count), at, path));
    at += static_cast<std::int64_t>(count);
    if (!size.progress) continue;
    CAIRN_RETURN_IF_ERROR(size.progress(at - begin, size.size_bytes - begin));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillSpace(int fd, const std::string& path, std::int64_t begin,
                       const ExtentFileSize& size) {
  const std::int64_t end = size.size_bytes;
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t free_bytes, FreeBytes(fd, path));
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t length_bytes, FileSize(fd, path));
  // An earlier call has reserved what the file is longer.
  const std::int64_t needed_bytes = end - std::max(begin, length_bytes);
  if (free_bytes < needed_bytes) return NoSpace(path, end, needed_bytes, free_bytes);
  const absl::StatusOr<bool> reserved = Reserve(fd, path, begin, end - begin);
  if (!reserved.ok()) return ExplainSpace(reserved.status(), fd, path, end, needed_bytes);
  if (*reserved && !size.prefill) return absl::OkStatus();
  std::int64_t from = begin;
  // Of what lies there without having been reserved nothing is known.
  if (*reserved && length_bytes > begin) {
    const std::optional<std::int64_t> unwritten = FirstUnwritten(fd, begin, end);
    from = std::max(unwritten.value_or(begin) / kPrefillBytes * kPrefillBytes, begin);
  }
  return ExplainSpace(WriteZeros(fd, path, begin, from, size), fd, path, end, needed_bytes);
}

}  // namespace cairn::kv
