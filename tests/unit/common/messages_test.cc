#include "common/kv/messages.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

EntryLayout SmallLayout() {
  return {.layer_count = 5, .head_count = 2, .head_dim = 64, .kv_format = KvFormat::kF16};
}

TEST(EntryLayoutTest, SizesFollowFromTheFormat) {
  EntryLayout layout = SmallLayout();
  EXPECT_EQ(layout.EntryBytes(0), 256);  // K and V, 64 numbers each, 2 bytes a number
  EXPECT_EQ(layout.EntryBytes(kAllHeads), 512);
  EXPECT_EQ(layout.TokenBytes(), 2560);
  layout.kv_format = KvFormat::kF32;
  EXPECT_EQ(layout.EntryBytes(0), 512);
  layout.kv_format = KvFormat::kQ8;
  EXPECT_EQ(layout.EntryBytes(0), 132);
  layout.kv_format = KvFormat::kQ4;
  EXPECT_EQ(layout.EntryBytes(kAllHeads), 212);
}

TEST(EntryLayoutTest, TheLargestShapeDoesNotOverflow) {
  const EntryLayout layout = {.layer_count = kLayerCountMax,
                              .head_count = kHeadCountMax,
                              .head_dim = kHeadDimMax,
                              .kv_format = KvFormat::kF32};
  ASSERT_TRUE(layout.Validate().ok());
  EXPECT_EQ(layout.TokenBytes(), std::int64_t{1} << 33);
}

TEST(EntryLayoutTest, RefusesShapesOutOfRange) {
  const std::int32_t bad[] = {std::numeric_limits<std::int32_t>::min(), -1, 0, 1025};
  for (const std::int32_t value : bad) {
    EntryLayout layout = SmallLayout();
    layout.layer_count = value;
    EXPECT_EQ(layout.Validate().code(), absl::StatusCode::kInvalidArgument);
    layout = SmallLayout();
    layout.head_count = value;
    EXPECT_EQ(layout.Validate().code(), absl::StatusCode::kInvalidArgument);
    layout = SmallLayout();
    layout.head_dim = value;
    EXPECT_EQ(layout.Validate().code(), absl::StatusCode::kInvalidArgument);
  }
}

SegmentKey SmallKey() {
  return {.model_digest = std::string(32, 'm'),
          .adapter_digest = "",
          .adapter_scale = 0,
          .rope_parameters = "base=500000",
          .kv_format = KvFormat::kF16,
          .sharing_domain = "app"};
}

TEST(SegmentKeyTest, RefusesFieldsOfTheWrongLength) {
  EXPECT_TRUE(SmallKey().Validate().ok());
  SegmentKey key = SmallKey();
  key.model_digest.pop_back();
  EXPECT_FALSE(key.Validate().ok());
  key = SmallKey();
  key.adapter_digest = "short";
  EXPECT_FALSE(key.Validate().ok());
  key = SmallKey();
  key.rope_parameters.clear();
  EXPECT_FALSE(key.Validate().ok());
  key = SmallKey();
  key.sharing_domain.assign(257, 'x');
  EXPECT_FALSE(key.Validate().ok());
}

TEST(SegmentKeyTest, EveryFieldDecidesWhetherEntriesCanBeShared) {
  std::vector<SegmentKey> others(6, SmallKey());
  others[0].model_digest[0] = 'n';
  others[1].adapter_digest.assign(32, 'a');
  others[2].adapter_scale = 0.5F;
  others[3].rope_parameters = "base=10000";
  others[4].kv_format = KvFormat::kF32;
  others[5].sharing_domain = "other";
  for (const SegmentKey& other : others) EXPECT_FALSE(other == SmallKey());
  EXPECT_TRUE(SmallKey() == SmallKey());
}

TEST(KvFormatTest, NamesAndNumbersRoundTrip) {
  for (const KvFormat format : kKvFormats) {
    EXPECT_EQ(ParseKvFormat(KvFormatName(format)), format);
    EXPECT_EQ(KvFormatFromNumber(static_cast<std::int64_t>(format)), format);
  }
  EXPECT_EQ(static_cast<int>(KvFormat::kF32), 1);  // on disk
  EXPECT_EQ(static_cast<int>(KvFormat::kF16), 2);
  EXPECT_EQ(static_cast<int>(KvFormat::kQ8), 3);
  EXPECT_EQ(static_cast<int>(KvFormat::kQ4), 4);
  EXPECT_EQ(ParseKvFormat("f8"), std::nullopt);
  EXPECT_EQ(KvFormatFromNumber(0), std::nullopt);
  EXPECT_EQ(KvFormatFromNumber(5), std::nullopt);
  EXPECT_EQ(KvFormatFromNumber(std::int64_t{1} << 40), std::nullopt);
}

TEST(SpanTest, EntriesOfADownwardPartAreCountedFromItsEnd) {
  const std::vector<std::byte> bytes = {std::byte{1}, std::byte{1}, std::byte{2}, std::byte{2}};
  Span span;
  span.entry_count = 2;
  span.bytes = bytes;
  EXPECT_EQ(*span.Entry(0, 2), std::byte{1});
  EXPECT_EQ(*span.Entry(1, 2), std::byte{2});
  span.direction = Direction::kDown;
  EXPECT_EQ(*span.Entry(0, 2), std::byte{2});
  EXPECT_EQ(*span.Entry(1, 2), std::byte{1});
}

TEST(OperationBytesTest, CountsThePayload) {
  Append append;
  append.clusters.push_back({{0, ClusterId(3)}, Positions::Range(0, 4), std::string(1024, 'x')});
  EXPECT_GE(OperationBytes(append), 1024);
  PutPolicyState state;
  EXPECT_GT(OperationBytes(state), 0);  // a million empty operations are not free
  state.state.assign(500, 's');
  EXPECT_GE(OperationBytes(state), 500);
  Checkpoint checkpoint;
  checkpoint.token_ids.assign(100, 1);
  EXPECT_GE(OperationBytes(checkpoint), 400);
}

}  // namespace
}  // namespace cairn
