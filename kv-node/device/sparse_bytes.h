// Zero-initialised bytes whose memory is allocated in chunks when they are first written.
//
// Threading:  externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cairn::kv {

class SparseBytes {
 public:
  static constexpr std::int64_t kChunkBytes = std::int64_t{256} << 10;

  explicit SparseBytes(std::int64_t size_bytes) { Grow(size_bytes); }

  void Grow(std::int64_t size_bytes);
  // REQUIRES: [offset, offset + size) lies inside size_bytes().
  void Read(std::int64_t offset_bytes, std::span<std::byte> out) const;
  void Write(std::int64_t offset_bytes, std::span<const std::byte> data);
  std::int64_t size_bytes() const { return size_bytes_; }
  std::int64_t allocated_bytes() const { return allocated_chunk_count_ * kChunkBytes; }

 private:
  std::int64_t size_bytes_ = 0;
  std::int64_t allocated_chunk_count_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
};

}  // namespace cairn::kv
