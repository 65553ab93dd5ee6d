#include "common/io/aligned_buffer.h"

#include <cstdlib>
#include <cstring>

#include "common/base/check.h"

namespace cairn {

AlignedBuffer::AlignedBuffer(std::int64_t size_bytes) {
  CAIRN_CHECK_GE(size_bytes, 0);
  size_bytes_ = (size_bytes + kIoAlignmentBytes - 1) / kIoAlignmentBytes * kIoAlignmentBytes;
  if (size_bytes_ == 0) return;
  void* memory = std::aligned_alloc(kIoAlignmentBytes, static_cast<std::size_t>(size_bytes_));
  CAIRN_CHECK(memory != nullptr);
  std::memset(memory, 0, static_cast<std::size_t>(size_bytes_));
  data_.reset(static_cast<std::byte*>(memory));
}

AlignedBuffer AlignedBuffer::Copy() const {
  AlignedBuffer copy(size_bytes_);
  if (size_bytes_ > 0) std::memcpy(copy.data(), data(), static_cast<std::size_t>(size_bytes_));
  return copy;
}

void AlignedBuffer::Free::operator()(std::byte* data) const { std::free(data); }

}  // namespace cairn
