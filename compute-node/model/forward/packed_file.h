// A PackedFile keeps the packed weights of one model, so that packing is done once: from the second
// load on the file is mapped, and its pages are shared and can be dropped by the kernel like those
// of any file. It belongs in a cache folder and is safe to delete at any time.
//
// What is in it is only taken if it was made from the same model (by digest), laid out as this
// version of Cairn does (by version and by a checksum of the list of matrices), and is whole: every
// chunk has a CRC32C, which Open checks. Anything else is made anew.
//
// Format:     a header in the first page, the weights from kPackedDataAt on, the chunks' checksums
//             behind them. Of no use to anything but the version of Cairn that made it.
// Threading:  immutable once open; a writer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/gguf/file_watch.h"

namespace cairn::compute {

// Smaller models are packed in hardly more time than it takes to look for a file.
inline constexpr std::int64_t kPackedFileBytesMin = std::int64_t{64} << 20;
inline constexpr std::int64_t kHugePageBytes = 2 << 20;
// On a huge page's boundary, so that the kernel may map the weights by huge pages.
inline constexpr std::int64_t kPackedDataAt = kHugePageBytes;
inline constexpr std::int64_t kPackedChunkBytes = 2 * kHugePageBytes;

// Pages of this process from a huge page's boundary on.
class AlignedMapping {
 public:
  AlignedMapping() = default;
  ~AlignedMapping();
  AlignedMapping(AlignedMapping&& other) noexcept;
  AlignedMapping& operator=(AlignedMapping&& other) noexcept;
  AlignedMapping(const AlignedMapping&) = delete;
  AlignedMapping& operator=(const AlignedMapping&) = delete;

  // Zeroed memory; in huge pages where the kernel offers them.
  static absl::StatusOr<AlignedMapping> Memory(std::int64_t size_bytes);
  // The bytes of a file from `offset` on, a multiple of a huge page; read-only. Takes `fd`, whose
  // file is as `opened` says.
  static absl::StatusOr<AlignedMapping> File(UniqueFd fd, const struct stat& opened,
                                             std::int64_t offset, std::int64_t size_bytes,
                                             const std::string& name);

  std::byte* data() const { return data_; }
  // FAILED_PRECONDITION if the bytes are a file's that was written to since or could not be read.
  absl::Status CheckIntact() const {
    return watch_ != nullptr ? watch_->Check() : absl::OkStatus();
  }

 private:
  static absl::StatusOr<AlignedMapping> Reserve(std::int64_t size_bytes);

  void* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::unique_ptr<FileWatch> watch_;  // null: memory
};

// Told while weights are packed, in bytes of the model's file.
using PackProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Where packed weights are kept.
struct PackedCache {
  std::string directory;     // empty: nowhere
  std::string model_digest;  // 32 bytes
  std::int64_t size_bytes_min = kPackedFileBytesMin;
};

// What a file must have been made from and for.
struct PackedKey {
  std::string model_digest;  // 32 bytes
  std::uint32_t plan_crc = 0;
  std::int64_t size_bytes = 0;  // of the weights
};

// DIRECTORY/packed-DIGEST, with the first half of the digest in hexadecimal.
std::string PackedFilePath(const std::string& directory, const std::string& model_digest);

// The weights in the file at `path`. NOT_FOUND: there is no file; DATA_LOSS: it is not what `key`
// says, or damaged.
absl::StatusOr<AlignedMapping> OpenPackedFile(const std::string& path, const PackedKey& key,
                                              ThreadPool& pool);

// Writes a file that has no name until it is complete: what ends in the middle leaves nothing.
class PackedFileWriter {
 public:
  // RESOURCE_EXHAUSTED if the file system has not enough room.
  static absl::StatusOr<std::unique_ptr<PackedFileWriter>> Create(const std::string& directory,
                                                                  const PackedKey& key);
  // The next bytes of the weights.
  absl::Status Append(std::span<const std::byte> bytes);
  // Gives the file its name, in place of one that is there. REQUIRES: key.size_bytes were appended.
  absl::Status Finish();

 private:
  PackedFileWriter(std::string directory, PackedKey key, UniqueFd fd);
  absl::Status WriteChunk();

  const std::string directory_;
  const PackedKey key_;
  const UniqueFd fd_;
  std::vector<std::byte> chunk_;
  std::vector<std::uint32_t> checksums_;
  std::int64_t written_bytes_ = 0;
};

}  // namespace cairn::compute
