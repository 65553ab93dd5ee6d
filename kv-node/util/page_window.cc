#include "kv-node/util/page_window.h"

#include <algorithm>

#include "common/base/check.h"
#include "kv-node/layout/file_calls.h"

namespace cairn::kv {

absl::StatusOr<PageBytes> PageWindow::Page(PageIndex page, PageIndex end) {
  CAIRN_CHECK_LT(page.value(), end.value());
  CAIRN_CHECK_LE(end.value(), store_.page_count);
  if (page.value() < first_ || page.value() >= first_ + count_) {
    const std::int64_t count = std::min(end.value() - page.value(), kWindowBytes / kPageBytes);
    // One page that cannot be read must not hide the others.
    if (!Load(page.value(), count).ok()) CAIRN_RETURN_IF_ERROR(Load(page.value(), 1));
  }
  const auto offset = static_cast<std::size_t>((page.value() - first_) * kPageBytes);
  return PageBytes(buffer_.span().subspan(offset, static_cast<std::size_t>(kPageBytes)));
}

absl::StatusOr<PageBytes> PageWindow::ReadAgain(PageIndex page) {
  CAIRN_RETURN_IF_ERROR(Load(page.value(), 1));
  return PageBytes(buffer_.span().first(static_cast<std::size_t>(kPageBytes)));
}

absl::Status PageWindow::Load(std::int64_t first, std::int64_t count) {
  count_ = 0;
  const std::int64_t size_bytes = count * kPageBytes;
  if (buffer_.size_bytes() < size_bytes) buffer_ = AlignedBuffer(size_bytes);
  CAIRN_RETURN_IF_ERROR(ReadWhole(store_.fd,
                                  buffer_.span().first(static_cast<std::size_t>(size_bytes)),
                                  first * kPageBytes, store_.path));
  first_ = first;
  count_ = count;
  return absl::OkStatus();
}

}  // namespace cairn::kv
