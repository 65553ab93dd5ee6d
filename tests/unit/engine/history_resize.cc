// HistoryWorld: the extent file gets another size between two engines, as it does at a start of the
// daemon.
#include <algorithm>

#include <gtest/gtest.h>

#include "common/io/aligned_buffer.h"
#include "kv-node/engine/defragment/extent_mover.h"
#include "kv-node/layout/superblock.h"
#include "tests/unit/engine/history_world.h"

namespace cairn::kv {
namespace {

// What a history may need beside what it has stored.
constexpr std::int64_t kRoomPages = kDiskBytes / kPageBytes / 2;

}  // namespace

// What a shorter file has lost.
void HistoryWorld::WipeFrom(std::int64_t page) {
  const std::unique_ptr<Device> device = disk_.Open();
  AlignedBuffer garbage(kDiskBytes - page * kPageBytes);
  for (std::byte& byte : garbage.span()) byte = static_cast<std::byte>(Random(256));
  absl::Status status;
  device->SubmitWrite(DeviceOffset(page * kPageBytes), garbage.span(),
                      [&](const absl::Status& written) { status = written; });
  while (device->in_flight_count() > 0) device->Poll(std::chrono::milliseconds(1));
  EXPECT_TRUE(status.ok()) << status;
}

// Down to what is stored and some pages more. False: the power went off.
bool HistoryWorld::TryShrink(std::int64_t slack_pages) {
  auto store = OpenMeta();
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return true;
  const std::unique_ptr<Device> device = disk_.Open(page_count_ * kPageBytes);
  const auto move_below = [&](std::int64_t end) {
    return MoveExtentsBelow(**store, *device, {.page_count = page_count_, .end = end});
  };
  const auto used = move_below(kFirstDataPage);  // too few for anything: says how many there are
  EXPECT_TRUE(used.ok()) << used.status();
  if (!used.ok()) return true;
  const std::int64_t end = std::min(page_count_, used->used_page_count + slack_pages);
  const std::int64_t fault = Random(3);
  if (fault == 1) disk_.DieAfter(Random(6));
  if (fault == 2) files_->CutAtSyncOf(".log", Random(3));
  const auto moved = move_below(end);
  disk_.ForgetFaults();
  if (!moved.ok()) {
    EXPECT_NE(fault, 0) << moved.status();
    ++counts_["move cut"];
    disk_.PowerCut();
    files_->PowerCut();
    return false;
  }
  counts_["page moved"] += static_cast<int>(moved->moved_bytes / kPageBytes);
  if (moved->free_from > end) {
    ++counts_["too scattered"];
    EXPECT_LE(moved->free_from, page_count_);
    return true;
  }
  page_count_ = end;
  ++counts_["shrunk"];
  return true;
}

void HistoryWorld::Resize() {
  while (!TryShrink(Random(12)) && !::testing::Test::HasFailure()) {
  }
  if (page_count_ < kDiskBytes / kPageBytes) WipeFrom(page_count_);
  const std::int64_t least = std::min(page_count_ + kRoomPages, kDiskBytes / kPageBytes);
  page_count_ = least + Random(kDiskBytes / kPageBytes - least + 1);
}

}  // namespace cairn::kv
