#include "compute-node/model/forward/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/check.h"
#include "common/base/random_bytes.h"
#include "common/io/checksum.h"
#include "compute-node/model/gguf/model_digest.h"

namespace cairn::compute {
namespace {

// Also changes with the layout of panels (kernels/packed_matrix.h).
constexpr std::uint32_t kPackedVersion = 1;
constexpr std::array<char, 8> kPackedMagic = {'C', 'A', 'I', 'R', 'N', 'P', 'K', 'W'};

struct PackedHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t plan_crc;
  std::array<char, kModelDigestBytes> model_digest;
  std::int64_t size_bytes;
  std::uint32_t checksums_crc;
  std::uint32_t header_crc;  // of the bytes before
};
static_assert(sizeof(PackedHeader) == 64);

std::uint32_t CrcOf(const void* data, std::size_t size_bytes) {
  return Crc32c({static_cast<const std::byte*>(data), size_bytes}, 0);
}

PackedHeader MakeHeader(const PackedKey& key, std::span<const std::uint32_t> checksums) {
  PackedHeader header = {};
  header.magic = kPackedMagic;
  header.version = kPackedVersion;
  header.plan_crc = key.plan_crc;
  CAIRN_CHECK_EQ(key.model_digest.size(), kModelDigestBytes);
  std::copy(key.model_digest.begin(), key.model_digest.end(), header.model_digest.begin());
  header.size_bytes = key.size_bytes;
  header.checksums_crc = CrcOf(checksums.data(), checksums.size_bytes());
  header.header_crc = CrcOf(&header, offsetof(PackedHeader, header_crc));
  return header;
}

std::int64_t ChunkCount(std::int64_t size_bytes) {
  return (size_bytes + kPackedChunkBytes - 1) / kPackedChunkBytes;
}

std::int64_t FileBytes(std::int64_t size_bytes) {
  return kPackedDataAt + size_bytes +
         ChunkCount(size_bytes) * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

// Whether all of it could be read.
bool ReadAt(int fd, void* to, std::size_t size_bytes, std::int64_t offset) {
  auto* bytes = static_cast<char*>(to);
  while (size_bytes > 0) {
    const ssize_t count = pread(fd, bytes, size_bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes += count;
    offset += count;
    size_bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

absl::Status WriteAt(int fd, const void* from, std::size_t size_bytes, std::int64_t offset) {
  const auto* bytes = static_cast<const char*>(from);
  while (size_bytes > 0) {
    const ssize_t count = pwrite(fd, bytes, size_bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "write packed weights");
    bytes += count;
    offset += count;
    size_bytes -= static_cast<std::size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace

AlignedMapping::~AlignedMapping() {
  watch_.reset();
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

AlignedMapping::AlignedMapping(AlignedMapping&& other) noexcept { *this = std::move(other); }

AlignedMapping& AlignedMapping::operator=(AlignedMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(watch_, other.watch_);
  return *this;
}

absl::StatusOr<AlignedMapping> AlignedMapping::Reserve(std::int64_t size_bytes) {
  AlignedMapping out;
  // One huge page more than needed, so that the data can begin on a huge page's boundary.
  out.mapped_bytes_ = static_cast<std::size_t>(size_bytes + kHugePageBytes);
  void* base = mmap(nullptr, out.mapped_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("map {} bytes for the weights", out.mapped_bytes_));
  }
  out.base_ = base;
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const auto over = static_cast<std::int64_t>(address % std::uintptr_t{kHugePageBytes});
  out.data_ = static_cast<std::byte*>(base) + (over == 0 ? 0 : kHugePageBytes - over);
  return out;
}

absl::StatusOr<AlignedMapping> AlignedMapping::Memory(std::int64_t size_bytes) {
  CAIRN_ASSIGN_OR_RETURN(AlignedMapping out, Reserve(size_bytes));
  // Advice only: without huge pages the weights still work, some 10 % slower.
  static_cast<void>(madvise(out.base_, out.mapped_bytes_, MADV_HUGEPAGE));
  return out;
}

absl::StatusOr<AlignedMapping> AlignedMapping::File(UniqueFd fd, const struct stat& opened,
                                                    std::int64_t offset, std::int64_t size_bytes,
                                                    const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(AlignedMapping out, Reserve(size_bytes));
  const void* mapped = mmap(out.data_, static_cast<std::size_t>(size_bytes), PROT_READ,
                            MAP_SHARED | MAP_FIXED, fd.get(), offset);
  if (mapped == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("map {} bytes of packed weights", size_bytes));
  }
  static_cast<void>(madvise(out.data_, static_cast<std::size_t>(size_bytes), MADV_HUGEPAGE));
  CAIRN_ASSIGN_OR_RETURN(out.watch_,
                         FileWatch::Start(std::move(fd), opened,
                                          {out.data_, static_cast<std::size_t>(size_bytes)}, name));
  return out;
}

std::string PackedFilePath(const std::string& directory, const std::string& model_digest) {
  return fmt::format("{}/packed-{}", directory,
                     ToHex(model_digest.substr(0, kModelDigestBytes / 2)));
}

absl::StatusOr<AlignedMapping> OpenPackedFile(const std::string& path, const PackedKey& key,
                                              ThreadPool& pool) {
  // O_NONBLOCK: a pipe is refused below instead of waited for.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) {
    return ErrnoStatus(errno, fmt::format("open packed weights '{}'", path));
  }
  const auto wrong = [&](std::string_view what) {
    return DataLoss("packed weights '{}': {}", path, what);
  };
  struct stat info = {};
  PackedHeader header = {};
  if (fstat(file.get(), &info) != 0 || info.st_size != FileBytes(key.size_bytes) ||
      !ReadAt(file.get(), &header, sizeof(header), 0)) {
    return wrong("not of the size that the model needs");
  }
  std::vector<std::uint32_t> checksums(static_cast<std::size_t>(ChunkCount(key.size_bytes)));
  if (!ReadAt(file.get(), checksums.data(), checksums.size() * sizeof(std::uint32_t),
              kPackedDataAt + key.size_bytes)) {
    return wrong("cannot be read");
  }
  const PackedHeader expected = MakeHeader(key, checksums);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return wrong("made for another model or version, or damaged");
  }
  CAIRN_ASSIGN_OR_RETURN(AlignedMapping mapping,
                         AlignedMapping::File(std::move(file), info, kPackedDataAt, key.size_bytes,
                                              fmt::format("file of packed weights '{}'", path)));
  std::atomic<bool> damaged{false};
  pool.ParallelFor(std::ssize(checksums), [&](std::int64_t chunk) {
    const std::int64_t at = chunk * kPackedChunkBytes;
    const std::int64_t size = std::min(kPackedChunkBytes, key.size_bytes - at);
    if (CrcOf(mapping.data() + at, static_cast<std::size_t>(size)) !=
        checksums[static_cast<std::size_t>(chunk)]) {
      damaged.store(true, std::memory_order_relaxed);
    }
  });
  if (damaged.load()) return wrong("a checksum does not hold");
  CAIRN_RETURN_IF_ERROR(mapping.CheckIntact());
  return mapping;
}

PackedFileWriter::PackedFileWriter(std::string directory, PackedKey key, UniqueFd fd)
    : directory_(std::move(directory)), key_(std::move(key)), fd_(std::move(fd)) {
  chunk_.reserve(static_cast<std::size_t>(kPackedChunkBytes));
}

absl::StatusOr<std::unique_ptr<PackedFileWriter>> PackedFileWriter::Create(
    const std::string& directory, const PackedKey& key) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  struct statvfs room = {};
  if (error || statvfs(directory.c_str(), &room) != 0) {
    return ErrnoStatus(error ? error.value() : errno,
                       fmt::format("make the folder '{}' for packed weights", directory));
  }
  const std::int64_t free_bytes =
      static_cast<std::int64_t>(room.f_bavail) * static_cast<std::int64_t>(room.f_frsize);
  const std::int64_t needed_bytes = FileBytes(key.size_bytes);
  if (free_bytes < needed_bytes) {
    return ResourceExhausted("packed weights need {} bytes in '{}', {} are free", needed_bytes,
                             directory, free_bytes);
  }
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd.valid()) {
    return ErrnoStatus(errno, fmt::format("make a file for packed weights in '{}'", directory));
  }
  return std::unique_ptr<PackedFileWriter>(new PackedFileWriter(directory, key, std::move(fd)));
}

absl::Status PackedFileWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t room = static_cast<std::size_t>(kPackedChunkBytes) - chunk_.size();
    const std::span<const std::byte> some = bytes.first(std::min(room, bytes.size()));
    chunk_.insert(chunk_.end(), some.begin(), some.end());
    bytes = bytes.subspan(some.size());
    if (std::ssize(chunk_) == kPackedChunkBytes) CAIRN_RETURN_IF_ERROR(WriteChunk());
  }
  return absl::OkStatus();
}

// In pieces that begin on a huge page's boundary: file systems that can then keep them in huge
// pages.
absl::Status PackedFileWriter::WriteChunk() {
  checksums_.push_back(CrcOf(chunk_.data(), chunk_.size()));
  CAIRN_RETURN_IF_ERROR(
      WriteAt(fd_.get(), chunk_.data(), chunk_.size(), kPackedDataAt + written_bytes_));
  written_bytes_ += std::ssize(chunk_);
  chunk_.clear();
  return absl::OkStatus();
}

absl::Status PackedFileWriter::Finish() {
  if (!chunk_.empty()) CAIRN_RETURN_IF_ERROR(WriteChunk());
  CAIRN_CHECK_EQ(written_bytes_, key_.size_bytes);
  CAIRN_RETURN_IF_ERROR(WriteAt(fd_.get(), checksums_.data(),
                                checksums_.size() * sizeof(std::uint32_t),
                                kPackedDataAt + written_bytes_));
  const PackedHeader header = MakeHeader(key_, checksums_);
  CAIRN_RETURN_IF_ERROR(WriteAt(fd_.get(), &header, sizeof(header), 0));
  const std::string path = PackedFilePath(directory_, key_.model_digest);
  std::error_code error;
  std::filesystem::remove(path, error);
  // Not synchronised: what a power cut takes away shows in the checksums.
  const std::string unnamed = fmt::format("/proc/self/fd/{}", fd_.get());
  if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0 &&
      errno != EEXIST) {  // another process has just made the same
    return ErrnoStatus(errno, fmt::format("name packed weights '{}'", path));
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
