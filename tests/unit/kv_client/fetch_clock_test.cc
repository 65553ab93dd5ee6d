#include "compute-node/kv_client/fetch_clock.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/kv_client/pending_reads.h"
#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

using std::chrono::milliseconds;

class FetchClockTest : public testing::Test {
 protected:
  void Pass(std::int64_t time_ms) { now_ += milliseconds(time_ms); }
  void ExpectTimes(std::int64_t io_ms, std::int64_t exposed_ms) const {
    EXPECT_EQ(clock_->times().io_time, milliseconds(io_ms));
    EXPECT_EQ(clock_->times().exposed_time, milliseconds(exposed_ms));
  }

  FetchClock::Clock::time_point now_{milliseconds(1000)};
  const std::shared_ptr<FetchClock> clock_ = std::make_shared<FetchClock>([this] { return now_; });
};

TEST_F(FetchClockTest, FetchesThatOverlapCountOnce) {
  clock_->BeginFetch();
  Pass(10);
  clock_->BeginFetch();
  Pass(10);
  clock_->EndFetch();
  Pass(10);
  ExpectTimes(30, 0);
  clock_->EndFetch();
  Pass(100);
  ExpectTimes(30, 0);
  clock_->BeginFetch();
  Pass(1);
  clock_->EndFetch();
  ExpectTimes(31, 0);
}

TEST_F(FetchClockTest, AWaitIsExposedUntilItsThreadGoesOn) {
  clock_->BeginFetch();
  Pass(10);
  {
    const auto wait = clock_->Wait();
    Pass(5);
    clock_->EndFetch();
    Pass(2);
    ExpectTimes(17, 7);
  }
  Pass(50);
  ExpectTimes(17, 7);
}

TEST_F(FetchClockTest, NoMoreIsExposedThanThereIs) {
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  std::int64_t fetch_count = 0;
  bool waiting = false;
  FetchTimes before;
  for (int i = 0; i < 2000; ++i) {
    Pass(static_cast<std::int64_t>(random() % 4));
    switch (random() % 4) {
      case 0:
        clock_->BeginFetch();
        ++fetch_count;
        break;
      case 1:
        if (fetch_count == 0) break;
        clock_->EndFetch();
        --fetch_count;
        break;
      case 2:
        if (!waiting) clock_->BeginWait();
        if (waiting) clock_->EndWait();
        waiting = !waiting;
        break;
      default:
        break;
    }
    const FetchTimes times = clock_->times();
    ASSERT_LE(times.exposed_time, times.io_time) << "seed " << seed;
    ASSERT_GE(times.io_time, before.io_time);
    ASSERT_GE(times.exposed_time, before.exposed_time);
    before = times;
  }
}

PendingReads::Read ReadOf(ReadOperation operation) { return {std::move(operation), OpSeq()}; }

TEST_F(FetchClockTest, PendingFetchesAreUnderWayUntilTheyAreAnsweredFailedOrForgotten) {
  {
    PendingReads reads(clock_);
    auto [other, other_answer] = reads.Add(ReadOf(FetchIndex{.layer = 0, .only_visible = true}));
    Pass(1000);
    auto [first, first_answer] = reads.Add(ReadOf(Fetch{}));
    auto [second, second_answer] = reads.Add(ReadOf(Fetch{}));
    Pass(10);
    EXPECT_TRUE(reads.Answer(other, CarriedReply{{}, 4096}));
    EXPECT_TRUE(reads.Answer(first, FetchReply{{}, 8192}));
    EXPECT_FALSE(reads.Answer(first, FetchReply{{}, 8192}));
    EXPECT_EQ(clock_->times().read_bytes, 3 * 4096);
    auto [index, index_answer] = reads.Add(ReadOf(GetIndex{0}));
    EXPECT_TRUE(reads.Answer(index, IndexReply{{}, 4096}));
    EXPECT_EQ(clock_->times().read_bytes, 4 * 4096);
    Pass(10);
    reads.FailAll(Unavailable("lost"));
    Pass(1000);
    ExpectTimes(20, 0);
    auto [third, third_answer] = reads.Add(ReadOf(Fetch{}));
    Pass(5);
  }
  Pass(1000);
  ExpectTimes(25, 0);
}

}  // namespace
}  // namespace cairn::compute
