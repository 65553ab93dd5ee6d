// AlignedBuffer owns memory that O_DIRECT accepts: address and size are multiples of 4096.
// Move-only; a copy is spelled Copy(). New bytes are zero, so nothing that was in memory before
// reaches the disk by accident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {

inline constexpr std::int64_t kIoAlignmentBytes = 4096;

namespace internal {

struct Unmap {
  std::size_t size_bytes = 0;
  void operator()(std::byte* data) const;
};

}  // namespace internal

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `size_bytes` is rounded up to the alignment.
  explicit AlignedBuffer(std::int64_t size_bytes);

  std::int64_t size_bytes() const { return size_bytes_; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::span<std::byte> span() { return {data_.get(), static_cast<std::size_t>(size_bytes_)}; }
  std::span<const std::byte> span() const {
    return {data_.get(), static_cast<std::size_t>(size_bytes_)};
  }
  AlignedBuffer Copy() const;

 private:
  std::unique_ptr<std::byte[], internal::Unmap> data_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace cairn
