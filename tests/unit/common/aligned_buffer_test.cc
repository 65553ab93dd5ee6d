#include "common/io/aligned_buffer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

namespace cairn {
namespace {

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kIoAlignmentBytes == 0;
}

TEST(AlignedBufferTest, AddressAndSizeAreWhatDirectIoAccepts) {
  for (const std::int64_t size : {1, 4095, 4096, 4097, 100000}) {
    const AlignedBuffer buffer(size);
    EXPECT_TRUE(IsAligned(buffer.data()));
    EXPECT_EQ(buffer.size_bytes() % kIoAlignmentBytes, 0);
    EXPECT_GE(buffer.size_bytes(), size);
    EXPECT_LT(buffer.size_bytes(), size + kIoAlignmentBytes);
  }
}

TEST(AlignedBufferTest, NewBytesAreZeroEvenWhereMemoryWasUsedBefore) {
  for (int i = 0; i < 16; ++i) {
    AlignedBuffer buffer(8192);
    EXPECT_TRUE(std::all_of(buffer.span().begin(), buffer.span().end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    std::fill(buffer.span().begin(), buffer.span().end(), std::byte{0xff});
  }
}

TEST(AlignedBufferTest, ACopyIsIndependent) {
  AlignedBuffer original(4096);
  original.span()[17] = std::byte{5};
  AlignedBuffer copy = original.Copy();
  EXPECT_TRUE(IsAligned(copy.data()));
  EXPECT_EQ(copy.span()[17], std::byte{5});
  copy.span()[17] = std::byte{6};
  EXPECT_EQ(original.span()[17], std::byte{5});
}

TEST(AlignedBufferTest, MovingTakesTheMemoryAlong) {
  AlignedBuffer original(4096);
  const std::byte* data = original.data();
  const AlignedBuffer moved = std::move(original);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.size_bytes(), 4096);
}

TEST(AlignedBufferTest, AnEmptyBufferHasNoMemory) {
  EXPECT_EQ(AlignedBuffer().size_bytes(), 0);
  EXPECT_TRUE(AlignedBuffer(0).span().empty());
  EXPECT_EQ(AlignedBuffer(0).Copy().size_bytes(), 0);
}

TEST(AlignedBufferDeathTest, ANegativeSizeIsAProgrammerError) {
  EXPECT_DEATH(AlignedBuffer(-1), "size_bytes");
}

}  // namespace
}  // namespace cairn
