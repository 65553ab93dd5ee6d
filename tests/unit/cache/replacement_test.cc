#include "kv-node/cache/replacement.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

class Order {
 public:
  explicit Order(ReplacementPolicy policy) : replacement_(policy) {}
  void Insert(Replacement::Key key, std::int64_t pages = 1) {
    pages_[key] = pages;
    replacement_.Insert(key, pages, ranks_[key]);
  }
  void Touch(Replacement::Key key) { replacement_.Touch(key, pages_[key], ranks_[key]); }
  // Keys in the order in which they leave.
  std::vector<Replacement::Key> Leave(int count) {
    std::vector<Replacement::Key> out;
    for (int i = 0; i < count; ++i) {
      const Replacement::Key key = replacement_.Victim([](Replacement::Key) { return true; });
      replacement_.Evicted(ranks_[key]);
      replacement_.Erase(key, ranks_[key]);
      out.push_back(key);
    }
    return out;
  }
  Replacement::Key VictimOtherThan(Replacement::Key spared) {
    return replacement_.Victim([&](Replacement::Key key) { return key != spared; });
  }

 private:
  Replacement replacement_;
  std::map<Replacement::Key, ReplacementRank> ranks_;
  std::map<Replacement::Key, std::int64_t> pages_;
};

using Keys = std::vector<Replacement::Key>;

TEST(ReplacementTest, LruForgetsWhatWasNotUsedLongest) {
  Order order(ReplacementPolicy::kLru);
  for (const Replacement::Key key : Keys{1, 2, 3}) order.Insert(key);
  order.Touch(1);
  EXPECT_EQ(order.Leave(3), (Keys{2, 3, 1}));
}

TEST(ReplacementTest, FifoForgetsWhatCameFirst) {
  Order order(ReplacementPolicy::kFifo);
  for (const Replacement::Key key : Keys{1, 2, 3}) order.Insert(key);
  order.Touch(1);
  EXPECT_EQ(order.Leave(3), (Keys{1, 2, 3}));
}

TEST(ReplacementTest, LfuForgetsWhatWasUsedLeast) {
  Order order(ReplacementPolicy::kLfu);
  for (const Replacement::Key key : Keys{1, 2, 3}) order.Insert(key);
  order.Touch(1);
  order.Touch(1);
  order.Touch(2);
  EXPECT_EQ(order.Leave(3), (Keys{3, 2, 1}));
}

TEST(ReplacementTest, ClusterAlignedForgetsLargeOnesFirst) {
  Order order(ReplacementPolicy::kClusterAligned);
  order.Insert(1, 1);
  order.Insert(2, 16);
  order.Insert(3, 4);
  EXPECT_EQ(order.Leave(3), (Keys{2, 3, 1}));
}

TEST(ReplacementTest, ClusterAlignedForgetsSmallOnesToo) {
  Order order(ReplacementPolicy::kClusterAligned);
  order.Insert(1, 1);
  // Each large one that leaves makes those that come later younger than the small one.
  Replacement::Key next = 2;
  int rounds = 0;
  while (true) {
    order.Insert(next++, 16);
    if (order.Leave(1) == Keys{1}) break;
    ASSERT_LT(++rounds, 100);
  }
  EXPECT_GE(rounds, 10);
}

TEST(ReplacementTest, SparedItemsStay) {
  Order order(ReplacementPolicy::kLru);
  order.Insert(1);
  EXPECT_EQ(order.VictimOtherThan(1), 0U);
  order.Insert(2);
  EXPECT_EQ(order.VictimOtherThan(1), 2U);
}

TEST(ReplacementTest, NamesAreReadAsTheyAreWritten) {
  for (const auto policy : {ReplacementPolicy::kClusterAligned, ReplacementPolicy::kLru,
                            ReplacementPolicy::kLfu, ReplacementPolicy::kFifo}) {
    const auto parsed = ParseReplacementPolicy(ReplacementPolicyName(policy));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, policy);
  }
  EXPECT_EQ(ParseReplacementPolicy("clock").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::kv
