#include "compute-node/kernels/read_bandwidth.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

TEST(ReadBandwidthTest, MeasuresWithAllThreadsOfThePool) {
  ThreadPool pool(2);
  const auto measured =
      MeasureReadBandwidth(pool, (std::int64_t{8} << 20) + 5, std::chrono::milliseconds(0));
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->thread_count, 2);
  EXPECT_EQ(measured->buffer_bytes, std::int64_t{8} << 20);
  // Any machine that runs this; a pass that read nothing would be far above.
  EXPECT_GT(measured->bytes_per_second, 1e7);
  EXPECT_LT(measured->bytes_per_second, 1e13);
}

TEST(ReadBandwidthTest, TheBufferIsBounded) {
  EXPECT_GE(ReadProbeBufferBytes(), std::int64_t{64} << 20);
  EXPECT_LE(ReadProbeBufferBytes(), std::int64_t{512} << 20);
}

}  // namespace
}  // namespace cairn::compute
