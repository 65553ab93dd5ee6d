#include "kv-node/layout/file_calls.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/fail_point.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

constexpr std::chrono::milliseconds kLockRetry(10);

// Not a process's lock: that one would be dropped when any descriptor of the file is closed.
bool SetLock(int fd, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, FailPoint("the lock is the process's (rule 7)") ? F_SETLK : F_OFD_SETLK,
               &lock) == 0;
}

// The kernel does not say who has such a lock. So: who else has the file open, as far as this
// process may see it.
std::string UserOf(int fd) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  const std::string self = std::to_string(::getpid());
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename().string();
    if (pid == self || pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;
    for (fs::directory_iterator open(process->path() / "fd", gone); !gone && open != end;
         open.increment(gone)) {
      std::error_code unseen;
      if (fs::read_symlink(open->path(), unseen) != file) continue;
      std::ifstream comm(process->path() / "comm");
      std::string name;
      std::getline(comm, name);
      return fmt::format("process {} ({})", pid, name);
    }
  }
  return "a process that has ended a moment ago, or that cannot be seen from here";
}

}  // namespace

absl::Status LockExtentFile(int fd, const std::string& directory, std::chrono::milliseconds wait,
                            LockKind kind) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  bool told = false;
  for (;;) {
    if (SetLock(fd, kind == LockKind::kShared ? F_RDLCK : F_WRLCK)) return absl::OkStatus();
    if (errno != EAGAIN && errno != EACCES) {
      return ErrnoStatus(errno, fmt::format("lock the extent file in {}", directory));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Unavailable(
          "another cairn-kv-node uses {} (or cairn-kv-util looks at it, or a cairn-compute-node "
          "with "
          "kv: \"embedded\" has it): {}; stop it, or choose another directory",
          directory, UserOf(fd));
    }
    if (!std::exchange(told, true)) {
      LogWarning("{} is in use by {}: waiting for its end, at most {} ms", directory, UserOf(fd),
                 wait.count());
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

void UnlockExtentFile(int fd) { SetLock(fd, F_UNLCK); }

absl::Status ReadWhole(int fd, std::span<std::byte> buffer, std::int64_t offset_bytes,
                       const std::string& path) {
  while (!buffer.empty()) {
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), offset_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ErrnoStatus(errno, fmt::format("read {} bytes at offset {} of {}", buffer.size(),
                                            offset_bytes, path));
    }
    if (got == 0) {
      return DataLoss("read {} bytes at offset {} of {}: the file ends before", buffer.size(),
                      offset_bytes, path);
    }
    buffer = buffer.subspan(static_cast<std::size_t>(got));
    offset_bytes += got;
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(int fd, std::span<const std::byte> buffer, std::int64_t offset_bytes,
                        const std::string& path) {
  while (!buffer.empty()) {
    const ssize_t put = pwrite(fd, buffer.data(), buffer.size(), offset_bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      return ErrnoStatus(put < 0 ? errno : EIO, fmt::format("write {} bytes at offset {} of {}",
                                                            buffer.size(), offset_bytes, path));
    }
    buffer = buffer.subspan(static_cast<std::size_t>(put));
    offset_bytes += put;
  }
  return absl::OkStatus();
}

std::optional<std::int64_t> FirstUnwritten(int fd, std::int64_t begin, std::int64_t end) {
  constexpr std::uint32_t kExtentsEach = 256;
  std::vector<std::byte> memory(sizeof(fiemap) + kExtentsEach * sizeof(fiemap_extent));
  auto at = static_cast<std::uint64_t>(begin);
  while (at < static_cast<std::uint64_t>(end)) {
    auto* map = new (memory.data()) fiemap{};
    map->fm_start = at;
    map->fm_length = static_cast<std::uint64_t>(end) - at;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = kExtentsEach;
    if (::ioctl(fd, FS_IOC_FIEMAP, map) != 0) return std::nullopt;
    const auto* extents = reinterpret_cast<const fiemap_extent*>(memory.data() + sizeof(fiemap));
    if (map->fm_mapped_extents == 0) return static_cast<std::int64_t>(at);
    for (std::uint32_t i = 0; i < map->fm_mapped_extents; ++i) {
      if ((extents[i].fe_flags & FIEMAP_EXTENT_UNWRITTEN) != 0 || extents[i].fe_logical > at) {
        return static_cast<std::int64_t>(at);
      }
      at = extents[i].fe_logical + extents[i].fe_length;
    }
  }
  return end;
}

bool HasUnwrittenSpace(int fd, std::int64_t size_bytes) {
  return FirstUnwritten(fd, 0, size_bytes).value_or(size_bytes) < size_bytes;
}

absl::StatusOr<std::int64_t> FileSize(int fd, const std::string& path) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  return static_cast<std::int64_t>(file.st_size);
}

}  // namespace cairn::kv
