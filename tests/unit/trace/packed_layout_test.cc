#include "tests/bench/trace/packed_layout.h"

#include <gtest/gtest.h>

namespace cairn::bench {
namespace {

TEST(PackedLayoutTest, AnAppendMovesWhatLiesBehind) {
  PackedLayout layout;
  layout.Append(1, 5, true);
  layout.Append(2, 7, true);
  layout.Append(3, 2, true);
  EXPECT_EQ(layout.moved_entry_count(), 0);
  layout.Append(2, 1, false);
  EXPECT_EQ(layout.moved_entry_count(), 2);
  layout.Append(1, 1, false);
  EXPECT_EQ(layout.moved_entry_count(), 2 + 8 + 2);
  layout.Append(4, 9, false);  // new: at the end
  EXPECT_EQ(layout.moved_entry_count(), 12);
}

TEST(PackedLayoutTest, ASplitMovesOneHalfToTheEndAndClosesTheHole) {
  PackedLayout layout;
  layout.Append(1, 6, true);
  layout.Append(2, 4, true);
  layout.Split(1, 3, 4, 4, 2);
  EXPECT_EQ(layout.moved_entry_count(), 4 + 2);
  layout.Append(3, 1, false);  // before 2 (4 entries) and 4 (2 entries)
  EXPECT_EQ(layout.moved_entry_count(), 6 + 6);
}

}  // namespace
}  // namespace cairn::bench
