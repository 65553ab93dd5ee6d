#include "kv-node/device/sparse_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace cairn::kv {

void SparseBytes::Grow(std::int64_t size_bytes) {
  CAIRN_CHECK_GE(size_bytes, size_bytes_);
  size_bytes_ = size_bytes;
  chunks_.resize(static_cast<std::size_t>((size_bytes + kChunkBytes - 1) / kChunkBytes));
}

void SparseBytes::Read(std::int64_t offset_bytes, std::span<std::byte> out) const {
  CAIRN_CHECK_GE(offset_bytes, 0);
  CAIRN_CHECK_LE(offset_bytes + static_cast<std::int64_t>(out.size()), size_bytes_);
  while (!out.empty()) {
    const std::int64_t in_chunk = offset_bytes % kChunkBytes;
    const std::size_t count =
        std::min(out.size(), static_cast<std::size_t>(kChunkBytes - in_chunk));
    const auto& chunk = chunks_[static_cast<std::size_t>(offset_bytes / kChunkBytes)];
    if (chunk == nullptr) {
      std::memset(out.data(), 0, count);
    } else {
      std::memcpy(out.data(), chunk.get() + in_chunk, count);
    }
    out = out.subspan(count);
    offset_bytes += static_cast<std::int64_t>(count);
  }
}

void SparseBytes::Write(std::int64_t offset_bytes, std::span<const std::byte> data) {
  CAIRN_CHECK_GE(offset_bytes, 0);
  CAIRN_CHECK_LE(offset_bytes + static_cast<std::int64_t>(data.size()), size_bytes_);
  while (!data.empty()) {
    const std::int64_t in_chunk = offset_bytes % kChunkBytes;
    const std::size_t count =
        std::min(data.size(), static_cast<std::size_t>(kChunkBytes - in_chunk));
    auto& chunk = chunks_[static_cast<std::size_t>(offset_bytes / kChunkBytes)];
    if (chunk == nullptr) {
      chunk = std::make_unique<std::byte[]>(static_cast<std::size_t>(kChunkBytes));
      ++allocated_chunk_count_;
    }
    std::memcpy(chunk.get() + in_chunk, data.data(), count);
    data = data.subspan(count);
    offset_bytes += static_cast<std::int64_t>(count);
  }
}

}  // namespace cairn::kv
