// ExtentFile::Create(): the file is made under a temporary name, locked from its first moment, and
// renamed when it is whole. What a crash leaves under the temporary name is taken over by the next
// attempt.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include "common/base/fail_point.h"
#include "common/io/aligned_buffer.h"
#include "common/log/log.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/layout/file_calls.h"
#include "kv-node/layout/file_space.h"

namespace cairn::kv {
namespace {

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("open {}", directory));
  const int result = FailPoint("the name of a new extent file is not synced") ? 0 : fsync(fd);
  const int error_number = errno;
  close(fd);
  if (result != 0) return ErrnoStatus(error_number, fmt::format("fsync {}", directory));
  return absl::OkStatus();
}

// False when the creator whose lock we waited for has renamed the file meanwhile.
bool IsSameFile(int fd, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

absl::Status AlreadyThere(const std::string& path) {
  return AlreadyExists(
      "create extent file {}: it exists and is left as it is; start again to use it", path);
}

absl::Status RenameNew(const std::string& from, const std::string& to) {
  int result = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  // Not every file system knows the flag.
  if (result != 0 && errno == EINVAL) result = std::rename(from.c_str(), to.c_str());
  if (result == 0) return absl::OkStatus();
  if (errno == EEXIST) return AlreadyThere(to);
  return ErrnoStatus(errno, fmt::format("rename {} to {}", from, to));
}

}  // namespace

absl::Status ExtentFile::FillAndName(const ExtentFileOptions& options, const ExtentFileSize& create,
                                     const std::string& temporary) {
  if (ftruncate(fd_, 0) != 0) return ErrnoStatus(errno, fmt::format("truncate {}", temporary));
  // Before the long write, so that a refusal comes at once.
  CAIRN_RETURN_IF_ERROR(WriteWhole(fd_, AlignedBuffer(kPageBytes).span(), 0, temporary));
  CAIRN_RETURN_IF_ERROR(CheckDirect(options.require_direct));
  CAIRN_RETURN_IF_ERROR(FillSpace(fd_, path_, 0, {size_bytes(), create.prefill, create.progress}));
  for (superblock_.sequence = 1; superblock_.sequence <= kSuperblockCopyCount;
       ++superblock_.sequence) {
    CAIRN_RETURN_IF_ERROR(WriteCopy(superblock_));
  }
  superblock_.sequence = kSuperblockCopyCount;
  if (!FailPoint("a new extent file is not synced") && fsync(fd_) != 0)
    return ErrnoStatus(errno, fmt::format("fsync {}", temporary));
  CAIRN_RETURN_IF_ERROR(RenameNew(temporary, path_));
  return SyncDirectory(options.directory);
}

absl::StatusOr<std::unique_ptr<ExtentFile>> ExtentFile::Create(const ExtentFileOptions& options,
                                                               const ExtentFileSize& create) {
  const std::string path = options.directory + "/" + kExtentFileName;
  const std::string temporary = path + ".new";
  const std::int64_t page_count = create.size_bytes / kPageBytes;
  if (page_count < kStorePageCountMin || page_count > kStorePageCountMax) {
    return InvalidArgument("create extent file {}: size {} is not in {}..{} bytes", path,
                           create.size_bytes, kStorePageCountMin * kPageBytes,
                           kStorePageCountMax * kPageBytes);
  }
  if (access(path.c_str(), F_OK) == 0) return AlreadyThere(path);
  CAIRN_ASSIGN_OR_RETURN(const int fd, OpenPreferDirect(temporary, O_RDWR | O_CREAT, 0600));
  std::unique_ptr<ExtentFile> file(new ExtentFile(fd, path));
  CAIRN_RETURN_IF_ERROR(LockExtentFile(fd, options.directory, options.lock_wait));
  if (!IsSameFile(fd, temporary)) return AlreadyThere(path);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  file->superblock_ = {
      .store_id = NewStoreId(),
      .page_count = page_count,
      .create_time_unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
  if (absl::Status status = file->FillAndName(options, create, temporary); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  LogInfo("extent file created path={} store={} page_count={} direct={} reason=\"{}\"", path,
          FormatStoreId(file->store_id()), page_count, file->direct(), file->direct_reason());
  return file;
}

}  // namespace cairn::kv
