#include "tests/sim/sim_store_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/check.h"
#include "kv-node/util/store_check.h"

namespace cairn::sim {
namespace {

// The disk's pages as a file; those of zeros are holes.
int FileOf(SimStore& store) {
  const int fd = memfd_create("sim-store", MFD_CLOEXEC);
  CAIRN_CHECK_GE(fd, 0);
  CAIRN_CHECK_EQ(ftruncate(fd, store.page_count * kv::kPageBytes), 0);
  for (std::int64_t page = 0; page < store.page_count; ++page) {
    const std::vector<std::byte> bytes = store.disk.PageBytes(page);
    const bool is_hole = std::all_of(bytes.begin(), bytes.end(),
                                     [](std::byte byte) { return byte == std::byte{0}; });
    if (is_hole) continue;
    CAIRN_CHECK_EQ(pwrite(fd, bytes.data(), bytes.size(), page * kv::kPageBytes),
                   std::ssize(bytes));
  }
  return fd;
}

}  // namespace

absl::Status CheckSimStore(SimStore& store) {
  SimMetaStore meta(store.rows, [](std::int64_t) { return 0; });
  kv::StoreView view;
  view.store_id = store.id;
  view.fd = FileOf(store);
  view.path = "the simulated disk";
  view.page_count = store.page_count;
  view.meta = &meta;
  absl::Status first;
  const auto survey = kv::CheckStore(view, [&](const kv::Finding& finding) {
    if (first.ok()) first = absl::InternalError(kv::FormatFinding(finding));
  });
  close(view.fd);
  return survey.ok() ? first : survey.status();
}

}  // namespace cairn::sim
