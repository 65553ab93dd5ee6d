// ExtentFile::Grow() and Shrink(): at every step the file is at least as long as the newest copy of
// the superblock says, and nobody uses a page before both copies have it.
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/log/log.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/layout/file_calls.h"
#include "kv-node/layout/file_space.h"

namespace cairn::kv {

absl::Status ExtentFile::RecordPageCount(std::int64_t page_count) {
  Superblock resized = superblock_;
  resized.page_count = page_count;
  // Both: with one damaged copy the other must not say less than what rows name by then.
  for (int copy = 0; copy < kSuperblockCopyCount; ++copy) {
    CAIRN_RETURN_IF_ERROR(WriteNextCopy(resized));
  }
  return absl::OkStatus();
}

absl::Status ExtentFile::Grow(const ExtentFileSize& size) {
  const std::int64_t page_count = size.size_bytes / kPageBytes;
  CAIRN_CHECK_LT(superblock_.page_count, page_count);
  CAIRN_CHECK_LE(page_count, kStorePageCountMax);
  absl::Status stopped;
  const auto progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
    if (size.progress) stopped = size.progress(done_bytes, total_bytes);
    return stopped;
  };
  absl::Status status =
      FillSpace(fd_, path_, size_bytes(), {page_count * kPageBytes, size.prefill, progress});
  if (!stopped.ok()) return stopped;
  if (status.ok() && fsync(fd_) != 0) status = ErrnoStatus(errno, fmt::format("fsync {}", path_));
  if (!status.ok()) {
    CutBehindEnd();
    return status;
  }
  return RecordPageCount(page_count);
}

absl::Status ExtentFile::Shrink(std::int64_t page_count) {
  CAIRN_CHECK_LT(page_count, superblock_.page_count);
  CAIRN_RETURN_IF_ERROR(RecordPageCount(page_count));
  CutBehindEnd();
  return absl::OkStatus();
}

void ExtentFile::CutBehindEnd() {
  const absl::StatusOr<std::int64_t> length_bytes = FileSize(fd_, path_);
  absl::Status status = length_bytes.status();
  if (status.ok()) {
    if (*length_bytes <= size_bytes()) return;
    if (ftruncate(fd_, size_bytes()) == 0 && fsync(fd_) == 0) {
      LogInfo("extent file cut path={} from_bytes={} to_bytes={}", path_, *length_bytes,
              size_bytes());
      return;
    }
    status = ErrnoStatus(errno, fmt::format("cut {} at {} bytes", path_, size_bytes()));
  }
  LogWarning("extent file is longer than its store path={} error=\"{}\"", path_, Message(status));
}

}  // namespace cairn::kv
