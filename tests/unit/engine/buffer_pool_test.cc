#include "kv-node/engine/io/buffer_pool.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

class BufferPoolTest : public ::testing::Test {
 protected:
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
};

TEST_F(BufferPoolTest, FreedBufferServesTheNextReadOfItsSize) {
  SharedBuffer first = pool_->MakeForRead(kMiB);
  const std::byte* memory = first->data();
  EXPECT_EQ(pool_->used_bytes(), kMiB);
  first.reset();
  EXPECT_EQ(pool_->used_bytes(), 0);
  EXPECT_EQ(pool_->kept_bytes(), kMiB);

  EXPECT_NE(pool_->MakeForRead(kMiB / 4)->data(), memory);  // too large for it
  const SharedBuffer again = pool_->MakeForRead(kMiB - 4096);
  EXPECT_EQ(again->data(), memory);
  EXPECT_EQ(pool_->used_bytes(), kMiB);
}

TEST_F(BufferPoolTest, KeepsNoMoreThanItsLimit) {
  std::array<SharedBuffer, 20> buffers;
  for (SharedBuffer& buffer : buffers) buffer = pool_->MakeForRead(kMiB);
  EXPECT_EQ(pool_->used_bytes(), 20 * kMiB);
  buffers = {};
  EXPECT_EQ(pool_->kept_bytes(), BufferPool::kKeptBytesMax);
  pool_->MakeForRead(16 * kMiB).reset();  // one that would take all the room is not kept
  EXPECT_EQ(pool_->kept_bytes(), BufferPool::kKeptBytesMax);
}

TEST_F(BufferPoolTest, ZeroedBuffersNeverHoldWhatWasReadBefore) {
  {
    const SharedBuffer read = pool_->MakeForRead(kMiB);
    std::fill(read->span().begin(), read->span().end(), std::byte{7});
  }
  const SharedBuffer zeroed = pool_->MakeZeroed(kMiB);
  EXPECT_EQ(std::count(zeroed->span().begin(), zeroed->span().end(), std::byte{0}), kMiB);
}

TEST_F(BufferPoolTest, ReleaseWakesOnceWhenAskedTo) {
  int wakes = 0;
  pool_->SetWake([&] { ++wakes; });
  pool_->MakeForRead(kMiB).reset();
  EXPECT_EQ(wakes, 0);
  pool_->WakeAtRelease();
  pool_->MakeForRead(kMiB).reset();
  pool_->MakeForRead(kMiB).reset();
  EXPECT_EQ(wakes, 1);
}

}  // namespace
}  // namespace cairn::kv
