#include "tests/sim/sim_store_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "kv-node/util/store_check.h"

namespace cairn::sim {

SimStoreCheck::SimStoreCheck(SimStore& store)
    : store_(store),
      fd_(memfd_create("sim-store", MFD_CLOEXEC)),
      mirrored_(static_cast<std::size_t>(store.page_count)) {
  CAIRN_CHECK_GE(fd_, 0);
  CAIRN_CHECK_EQ(ftruncate(fd_, store.page_count * kv::kPageBytes), 0);
}

SimStoreCheck::~SimStoreCheck() { close(fd_); }

// Writes the pages that changed.
void SimStoreCheck::Mirror(SimPages pages) {
  for (std::int64_t page = 0; page < store_.page_count; ++page) {
    std::vector<std::byte> bytes = pages == SimPages::kVisible ? store_.disk.PageBytes(page)
                                                               : store_.disk.DurablePageBytes(page);
    std::vector<std::byte>& mirrored = mirrored_[static_cast<std::size_t>(page)];
    const bool is_hole =
        mirrored.empty() && std::all_of(bytes.begin(), bytes.end(),
                                        [](std::byte byte) { return byte == std::byte{0}; });
    if (is_hole || bytes == mirrored) continue;
    CAIRN_CHECK_EQ(pwrite(fd_, bytes.data(), bytes.size(), page * kv::kPageBytes),
                   std::ssize(bytes));
    mirrored = std::move(bytes);
  }
}

absl::Status SimStoreCheck::Check(SimPages pages) {
  Mirror(pages);
  SimMetaStore meta(store_.rows, [](std::int64_t) { return 0; });
  kv::StoreView view;
  view.store_id = store_.id;
  view.fd = fd_;
  view.path = "the simulated disk";
  view.page_count = store_.page_count;
  view.meta = &meta;
  absl::Status first;
  const auto survey = kv::CheckStore(view, [&](const kv::Finding& finding) {
    if (first.ok()) first = absl::InternalError(kv::FormatFinding(finding));
  });
  return survey.ok() ? first : survey.status();
}

}  // namespace cairn::sim
