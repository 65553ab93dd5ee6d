// Keys and values that a format cannot hold, as DenseAttention meets them.
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {
namespace {

using testing::HasSubstr;

class KvMisfitTest : public testing::Test {
 protected:
  KvMisfitTest() : keys_(16, 0.5F), values_(16, 0.5F), queries_(16) {
    config_.layer_count = 2;
    config_.head_count = 2;
    config_.kv_head_count = 2;
    config_.head_dim = 8;
  }
  absl::Status Attend(KvFormat format) {
    ThreadPool pool(1);
    DenseAttention attention(config_, format, 4, pool);
    return attention.Attend({1, 0, 1, queries_, keys_, values_, queries_});
  }

  ModelConfig config_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> queries_;
};

TEST_F(KvMisfitTest, LayerTensorNumberAndFormatAreNamed) {
  EXPECT_TRUE(Attend(KvFormat::kF16).ok());
  values_[9] = 1e5F;
  absl::Status status = Attend(KvFormat::kF16);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("layer 1: tensor 'blk.1.attn_v.weight' and its bias make "
                                         "a value with the number 100000, which kv_format f16"));
  EXPECT_THAT(Message(status), HasSubstr("kv_format: \"f32\""));
  EXPECT_TRUE(Attend(KvFormat::kF32).ok());
  EXPECT_TRUE(Attend(KvFormat::kQ8).ok());
  keys_[15] = -1e7F;
  status = Attend(KvFormat::kQ4);
  EXPECT_THAT(Message(status), HasSubstr("'blk.1.attn_k.weight' and its bias make a key with the "
                                         "number -1e+07, which kv_format q4"));
}

TEST_F(KvMisfitTest, WhatIsNoNumberFitsNoFormat) {
  keys_[3] = std::numeric_limits<float>::quiet_NaN();
  keys_[4] = 1e9F;
  for (const KvFormat format : kKvFormats) {
    const absl::Status status = Attend(format);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status), HasSubstr("a key with the number nan: the model's numbers"));
  }
}

}  // namespace
}  // namespace cairn::compute
