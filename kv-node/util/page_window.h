// PageWindow gives the pages of an extent file one after the other, reading kWindowBytes at once
// where that is possible.
//
// Threading:  one thread.
// Blocking:   reads the file.
// Errors:     a page's status when the disk cannot read it; its neighbours are read alone then.
#pragma once

#include <cstdint>

#include "common/io/aligned_buffer.h"
#include "kv-node/layout/part.h"
#include "kv-node/util/store_check.h"

namespace cairn::kv {

class PageWindow {
 public:
  explicit PageWindow(const StoreView& store) : store_(store) {}

  // The bytes of `page`, valid until the next call. Pages from it up to `end` may be read too.
  // REQUIRES: page < end <= page_count of the store.
  absl::StatusOr<PageBytes> Page(PageIndex page, PageIndex end);
  // The bytes of `page` as the disk gives them now.
  absl::StatusOr<PageBytes> ReadAgain(PageIndex page);

 private:
  absl::Status Load(std::int64_t first, std::int64_t count);

  const StoreView& store_;
  AlignedBuffer buffer_;  // as large as what was read at once so far
  std::int64_t first_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace cairn::kv
