#include "compute-node/session/entries/window.h"

#include "common/base/check.h"

namespace cairn::compute {

Window::Window(const EntryLayout& layout, std::int64_t capacity)
    : capacity_(capacity), head_count_(layout.head_count), entry_bytes_(layout.EntryBytes(0)) {
  CAIRN_CHECK(capacity >= kWindowTokensMin && capacity <= kWindowTokensMax);
  bytes_.resize(static_cast<std::size_t>(layout.TokenBytes() * capacity));
}

std::size_t Window::Offset(std::int32_t layer, std::int32_t head, std::int64_t position) const {
  const std::int64_t slot = position % capacity_;
  return static_cast<std::size_t>(((layer * head_count_ + head) * capacity_ + slot) * entry_bytes_);
}

}  // namespace cairn::compute
