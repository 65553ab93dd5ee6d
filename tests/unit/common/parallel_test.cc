#include "common/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ParallelTest, RangesCoverAllOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64}) {
    for (const std::int64_t threads : {1, 2, 3, 8}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<int> ranges = 0;
      const absl::Status status =
          ForEachRange("test", count, threads, [&](std::int64_t begin, std::int64_t end) {
            ++ranges;
            EXPECT_LT(begin, end);
            for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
            return absl::OkStatus();
          });
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(ranges, std::min(count, threads));
      for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ParallelTest, GivesTheErrorOfTheFirstRangeThatHasOne) {
  std::atomic<int> ranges = 0;
  const absl::Status status =
      ForEachRange("test", 4, 4, [&](std::int64_t begin, std::int64_t) -> absl::Status {
        ++ranges;
        if (begin == 0) return absl::OkStatus();
        return DataLoss("range {}", begin);
      });
  EXPECT_EQ(status.message(), "range 1");
  EXPECT_EQ(ranges, 4);
}

}  // namespace
}  // namespace cairn
