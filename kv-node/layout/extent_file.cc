#include "kv-node/layout/extent_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/io/aligned_buffer.h"
#include "common/log/log.h"
#include "kv-node/layout/file_calls.h"

namespace cairn::kv {

absl::StatusOr<std::unique_ptr<ExtentFile>> ExtentFile::Open(const ExtentFileOptions& options) {
  const std::string path = options.directory + "/" + kExtentFileName;
  absl::StatusOr<int> fd = OpenPreferDirect(path, options.read_only ? O_RDONLY : O_RDWR, 0);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<ExtentFile> file(new ExtentFile(*fd, path));
  CAIRN_RETURN_IF_ERROR(
      LockExtentFile(*fd, options.directory, options.lock_wait,
                     options.read_only ? LockKind::kShared : LockKind::kExclusive));
  CAIRN_RETURN_IF_ERROR(file->Load(options.read_only));
  CAIRN_RETURN_IF_ERROR(file->CheckDirect(options.require_direct));
  LogInfo("extent file opened path={} store={} page_count={} direct={} reason=\"{}\"", path,
          FormatStoreId(file->store_id()), file->page_count(), file->direct(),
          file->direct_reason());
  return file;
}

ExtentFile::~ExtentFile() {
  // The kernel may keep the file open for a while: an io_uring is taken apart in the background.
  UnlockExtentFile(fd_);
  close(fd_);
}

absl::Status ExtentFile::Load(bool read_only) {
  struct stat file {};
  if (fstat(fd_, &file) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path_));
  if (!S_ISREG(file.st_mode)) return FailedPrecondition("{} is not a regular file", path_);
  if (file.st_size < kSuperblockCopyCount * kPageBytes) {
    return DataLoss(
        "extent file {} is truncated: {} bytes, its superblocks alone take {}; nothing was "
        "changed: restore the store's directory from a backup, or begin with an empty store in "
        "another data_dir",
        path_, file.st_size, kSuperblockCopyCount * kPageBytes);
  }
  AlignedBuffer pages(kSuperblockCopyCount * kPageBytes);
  CAIRN_RETURN_IF_ERROR(ReadWhole(fd_, pages.span(), 0, path_));
  const auto page = static_cast<std::size_t>(kPageBytes);
  absl::StatusOr<SuperblockChoice> choice =
      ChooseSuperblock(pages.span().first(page), pages.span().subspan(page, page));
  if (!choice.ok()) return Annotate(choice.status(), fmt::format("extent file {}", path_));
  superblock_ = choice->superblock;
  if (file.st_size < size_bytes()) {
    return DataLoss(
        "extent file {} is truncated: {} bytes, its superblock says {} ({} pages); nothing was "
        "changed: restore the store's directory from a backup, or begin with an empty store in "
        "another data_dir",
        path_, file.st_size, size_bytes(), page_count());
  }
  damaged_copy_ = choice->other_copy;
  if (!damaged_copy_.ok() && !read_only) {
    LogWarning("extent file repaired path={} reason=\"{}\"", path_, Message(damaged_copy_));
    // The damaged copy is the older one's place, which the next update overwrites.
    CAIRN_RETURN_IF_ERROR(UpdateSuperblock(superblock_));
  }
  if (choice->size_half_recorded && !read_only) {
    LogInfo("extent file resize finished path={} size_bytes={}", path_, size_bytes());
    CAIRN_RETURN_IF_ERROR(UpdateSuperblock(superblock_));
  }
  return absl::OkStatus();
}

absl::Status ExtentFile::RecordMetadataSequence(std::uint64_t sequence) {
  CAIRN_CHECK_GE(sequence, superblock_.metadata_sequence);
  if (sequence == superblock_.metadata_sequence) return absl::OkStatus();
  Superblock next = superblock_;
  next.metadata_sequence = sequence;
  return UpdateSuperblock(next);
}

absl::Status ExtentFile::UpdateSuperblock(Superblock superblock) {
  CAIRN_CHECK(superblock.store_id == superblock_.store_id);
  CAIRN_CHECK_EQ(superblock.page_count, superblock_.page_count);
  return WriteNextCopy(superblock);
}

absl::Status ExtentFile::WriteNextCopy(Superblock superblock) {
  superblock.sequence = superblock_.sequence + 1;
  CAIRN_RETURN_IF_ERROR(WriteCopy(superblock));
  if (!FailPoint("a superblock is not synced") && fdatasync(fd_) != 0) {
    return ErrnoStatus(errno, fmt::format("flush superblock of {}", path_));
  }
  superblock_ = superblock;
  return absl::OkStatus();
}

absl::Status ExtentFile::WriteCopy(const Superblock& superblock) {
  const SuperblockBytes bytes = EncodeSuperblock(superblock);
  AlignedBuffer page(kPageBytes);
  std::memcpy(page.data(), &bytes, sizeof bytes);
  const auto copy = static_cast<std::int64_t>(superblock.sequence % kSuperblockCopyCount);
  return WriteWhole(fd_, page.span(), copy * kPageBytes, path_);
}

absl::Status ExtentFile::CheckDirect(bool require_direct) {
  CAIRN_ASSIGN_OR_RETURN(direct_io_, VerifyDirect(fd_, path_));
  if (direct()) return absl::OkStatus();
  if (require_direct) {
    return FailedPrecondition(
        "extent file {}: O_DIRECT is demanded, but {}; put the store on another file system (ext4, "
        "xfs, f2fs), or do not demand it",
        path_, direct_reason());
  }
  LogWarning("extent file uses the page cache path={} reason=\"{}\"", path_, direct_reason());
  return absl::OkStatus();
}

}  // namespace cairn::kv
