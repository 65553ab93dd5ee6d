#include "tests/bench/trace/trace_source.h"

#include <gtest/gtest.h>

namespace cairn::bench {
namespace {

SyntheticOptions Small() {
  SyntheticOptions options;
  options.head_dim = 6;
  options.token_count = 100;
  options.prompt_count = 60;
  options.query_every = 7;
  return options;
}

TEST(TraceSourceTest, ASyntheticTraceDependsOnItsSeedOnly) {
  SyntheticOptions options = Small();
  const auto one = SyntheticTrace(options);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->Validate().ok());
  EXPECT_EQ(one->steps.size(), 6u);
  EXPECT_EQ(*one, *SyntheticTrace(options));
  options.seed = 2;
  EXPECT_NE(one->keys, SyntheticTrace(options)->keys);
}

TEST(TraceSourceTest, QueriesMayBeginInThePrompt) {
  SyntheticOptions options = Small();
  options.query_from = 5;
  const auto trace = SyntheticTrace(options);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->steps.front(), 5);
  EXPECT_EQ(trace->steps.size(), 14u);
}

TEST(TraceSourceTest, ShapesThatNoTraceHasAreRefused) {
  SyntheticOptions options = Small();
  options.head_dim = 0;
  EXPECT_FALSE(SyntheticTrace(options).ok());
  options = Small();
  options.layer_count = 1 << 20;
  EXPECT_FALSE(SyntheticTrace(options).ok());
  options = Small();
  options.prompt_count = 101;
  EXPECT_FALSE(SyntheticTrace(options).ok());
  options = Small();
  options.query_every = 0;
  EXPECT_FALSE(SyntheticTrace(options).ok());
}

TEST(TraceSourceTest, PairedHeadsLieSideBySide) {
  const auto single = SyntheticTrace(Small());
  ASSERT_TRUE(single.ok());
  const auto pairs = PairHeads(*single);
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(pairs->head_dim, 12);
  EXPECT_EQ(pairs->kv_heads.size(), 1u);
  EXPECT_EQ(pairs->Key(1, 0, 42)[5], single->Key(1, 0, 42)[5]);
  EXPECT_EQ(pairs->Key(1, 0, 42)[6], single->Key(1, 1, 42)[0]);
  // The third query of the group: dimension 1 of either head.
  EXPECT_EQ(pairs->Queries(3, 1, 0)[2 * 12 + 1], single->Queries(3, 1, 0)[2 * 6 + 1]);
  EXPECT_EQ(pairs->Queries(3, 1, 0)[2 * 12 + 7], single->Queries(3, 1, 1)[2 * 6 + 1]);
  EXPECT_FALSE(PairHeads(*pairs).ok());
}

}  // namespace
}  // namespace cairn::bench
