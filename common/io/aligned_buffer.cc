#include "common/io/aligned_buffer.h"

#include <sys/mman.h>

#include <cstring>

#include "common/base/check.h"

namespace cairn {

// A mapping of its own, not malloc: aligned blocks among small ones leave holes that never close,
// and what a daemon holds counts against the budget for keys and values. The kernel gives zeros.
AlignedBuffer::AlignedBuffer(std::int64_t size_bytes) {
  CAIRN_CHECK_GE(size_bytes, 0);
  size_bytes_ = (size_bytes + kIoAlignmentBytes - 1) / kIoAlignmentBytes * kIoAlignmentBytes;
  if (size_bytes_ == 0) return;
  const auto size = static_cast<std::size_t>(size_bytes_);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(memory != MAP_FAILED);
  data_ = {static_cast<std::byte*>(memory), internal::Unmap{size}};
}

AlignedBuffer AlignedBuffer::Copy() const {
  AlignedBuffer copy(size_bytes_);
  if (size_bytes_ > 0) std::memcpy(copy.data(), data(), static_cast<std::size_t>(size_bytes_));
  return copy;
}

void internal::Unmap::operator()(std::byte* data) const {
  CAIRN_CHECK_EQ(::munmap(data, size_bytes), 0);
}

}  // namespace cairn
