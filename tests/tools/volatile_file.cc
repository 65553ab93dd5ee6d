#include "tests/tools/volatile_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace cairn::test {
namespace {

constexpr std::int64_t kSector = 512;

VolatileFile* the_file = nullptr;

std::int64_t LengthOf(const std::string& path) {
  return static_cast<std::int64_t>(std::filesystem::file_size(path));
}

int Failed() {
  errno = EIO;
  return -1;
}

// A descriptor of the file that does not go through this file's calls.
class RawFile {
 public:
  explicit RawFile(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    CAIRN_CHECK_GE(fd_, 0);
  }
  ~RawFile() { close(fd_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

VolatileFile::VolatileFile(std::string path, std::uint64_t seed)
    : path_(std::move(path)), random_(seed), durable_length_(LengthOf(path_)) {
  CAIRN_CHECK(the_file == nullptr);
  the_file = this;
}

VolatileFile::~VolatileFile() { the_file = nullptr; }

bool VolatileFile::IsOf(int fd) const {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error) == path_;
}

bool VolatileFile::TakeCall() {
  if (calls_left_ == 0) return false;
  if (calls_left_ > 0) --calls_left_;
  return true;
}

// What lay there at the last sync: of each sector the bytes that were in front of the first change.
void VolatileFile::Remember(std::int64_t begin, std::int64_t end) {
  const RawFile file(path_);
  end = std::min(end, durable_length_);
  for (std::int64_t at = begin / kSector * kSector; at < end; at += kSector) {
    if (durable_sectors_.contains(at)) continue;
    std::vector<char> bytes(kSector);
    CAIRN_CHECK_GE(pread(file.fd(), bytes.data(), bytes.size(), at), 0);
    durable_sectors_.emplace(at, std::move(bytes));
  }
}

bool VolatileFile::BeforeWrite(std::int64_t offset, std::int64_t size) {
  if (!TakeCall()) return false;
  Remember(offset, offset + size);
  return true;
}

bool VolatileFile::BeforeResize(std::int64_t length) {
  if (!TakeCall()) return false;
  Remember(length, LengthOf(path_));
  return true;
}

bool VolatileFile::BeforeSync() { return TakeCall(); }

void VolatileFile::Synced() {
  durable_sectors_.clear();
  durable_length_ = LengthOf(path_);
}

void VolatileFile::PowerCut() {
  const RawFile file(path_);
  if (random_() % 2 == 0) CAIRN_CHECK_EQ(syscall(SYS_ftruncate, file.fd(), durable_length_), 0);
  const std::int64_t length = LengthOf(path_);
  for (const auto& [at, bytes] : durable_sectors_) {
    // What comes back with the old length has its old bytes.
    if (at >= length || random_() % 2 == 0) continue;
    const std::int64_t size = std::min(kSector, length - at);
    CAIRN_CHECK_EQ(syscall(SYS_pwrite64, file.fd(), bytes.data(), size, at), size);
  }
  calls_left_ = -1;
  Synced();
}

}  // namespace cairn::test

extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  cairn::test::VolatileFile* const file = cairn::test::the_file;
  if (file != nullptr && file->IsOf(fd) &&
      !file->BeforeWrite(offset, static_cast<std::int64_t>(size))) {
    return cairn::test::Failed();
  }
  return syscall(SYS_pwrite64, fd, bytes, size, offset);
}

extern "C" int ftruncate(int fd, off_t length) noexcept {
  cairn::test::VolatileFile* const file = cairn::test::the_file;
  if (file != nullptr && file->IsOf(fd) && !file->BeforeResize(length)) {
    return cairn::test::Failed();
  }
  return static_cast<int>(syscall(SYS_ftruncate, fd, length));
}

extern "C" int fallocate(int fd, int mode, off_t offset, off_t size) {
  cairn::test::VolatileFile* const file = cairn::test::the_file;
  if (file != nullptr && file->IsOf(fd) && !file->BeforeResize(offset + size)) {
    return cairn::test::Failed();
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size));
}

namespace {

int Sync(long call, int fd) {
  cairn::test::VolatileFile* const file = cairn::test::the_file;
  if (file == nullptr || !file->IsOf(fd)) return static_cast<int>(syscall(call, fd));
  if (!file->BeforeSync()) return cairn::test::Failed();
  file->Synced();  // nothing of it is lost: the test need not wait for the machine's disk
  return 0;
}

}  // namespace

extern "C" int fsync(int fd) { return Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return Sync(SYS_fdatasync, fd); }
