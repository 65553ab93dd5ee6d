#include "tests/tools/reference_forward.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/gguf_writer.h"

namespace cairn::test {
namespace {

using Rows = std::vector<std::vector<float>>;

void AddMatrix(GgufWriter& writer, const std::string& name, const Rows& rows) {
  writer.AddTensor(name, {static_cast<int64_t>(rows[0].size()), static_cast<int64_t>(rows.size())},
                   TensorType::kF32, [rows](int64_t row, std::span<float> values) {
                     const auto& source = rows[static_cast<size_t>(row)];
                     std::copy(source.begin(), source.end(), values.begin());
                   });
}

void AddVector(GgufWriter& writer, const std::string& name, const std::vector<float>& values) {
  writer.AddTensor(name, {static_cast<int64_t>(values.size())}, TensorType::kF32,
                   [values](int64_t, std::span<float> out) {
                     std::copy(values.begin(), values.end(), out.begin());
                   });
}

// Two dimensions, one head of size 2, three tokens, feed-forward switched off, so that one can
// follow it on paper.
std::string WriteTwoDimensionalModel(const std::string& architecture, bool attention) {
  const Rows identity = {{1, 0}, {0, 1}};
  const Rows zero = {{0, 0}, {0, 0}};
  GgufWriter writer;
  writer.AddString("general.architecture", architecture);
  writer.AddU32(architecture + ".block_count", 1);
  writer.AddU32(architecture + ".embedding_length", 2);
  writer.AddU32(architecture + ".attention.head_count", 1);
  writer.AddF32(architecture + ".attention.layer_norm_rms_epsilon", 0.0F);
  AddMatrix(writer, "token_embd.weight", {{1, 0}, {0, 1}, {3, 4}});
  AddVector(writer, "blk.0.attn_norm.weight", {1, 1});
  AddMatrix(writer, "blk.0.attn_q.weight", identity);
  AddMatrix(writer, "blk.0.attn_k.weight", identity);
  AddMatrix(writer, "blk.0.attn_v.weight", identity);
  AddMatrix(writer, "blk.0.attn_output.weight", attention ? identity : zero);
  AddVector(writer, "blk.0.ffn_norm.weight", {1, 1});
  AddMatrix(writer, "blk.0.ffn_gate.weight", zero);
  AddMatrix(writer, "blk.0.ffn_up.weight", zero);
  AddMatrix(writer, "blk.0.ffn_down.weight", zero);
  AddVector(writer, "output_norm.weight", {1, 2});
  std::string path = testing::TempDir() + "/reference_forward_test.gguf";
  EXPECT_TRUE(writer.WriteFile(path).ok());
  return path;
}

TEST(ReferenceForwardTest, WithoutAttentionItIsNormAndOutput) {
  const auto model = ReferenceModel::Load(WriteTwoDimensionalModel("llama", false));
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->vocab_size(), 3);
  // (3, 4) / sqrt(25 / 2) * (1, 2), times each row of the embedding.
  const double scale = 1 / std::sqrt(12.5);
  const std::vector<double> logits = model->Logits(std::vector<int32_t>{2}, 0);
  ASSERT_EQ(logits.size(), 3U);
  EXPECT_NEAR(logits[0], 3 * scale, 1e-12);
  EXPECT_NEAR(logits[1], 8 * scale, 1e-12);
  EXPECT_NEAR(logits[2], (9 + 32) * scale, 1e-12);
}

TEST(ReferenceForwardTest, AttentionOfTwoTokensByHand) {
  for (const std::string architecture : {"llama", "qwen2"}) {  // the same for heads of size 2
    const auto model = ReferenceModel::Load(WriteTwoDimensionalModel(architecture, true));
    ASSERT_TRUE(model.ok());
    // Tokens 0 and 1: normalised to (r, 0) and (0, r) with r = sqrt(2). At position 1 both query
    // and key are turned by 1 radian; at position 0 by none. Query (0, r) turned: (-r sin 1, r cos
    // 1).
    const double r = std::sqrt(2.0);
    const double score_past = (-r * std::sin(1.0)) * r / std::sqrt(2.0);
    const double score_self = r * r / std::sqrt(2.0);
    const double weight_past = 1 / (1 + std::exp(score_self - score_past));
    const double x = weight_past * r;  // the residual was (0, 1)
    const double y = 1 + (1 - weight_past) * r;
    const double scale = 1 / std::sqrt((x * x + y * y) / 2);
    const std::vector<double> logits = model->Logits(std::vector<int32_t>{0, 1}, 1);
    EXPECT_NEAR(logits[0], x * scale, 1e-12);
    EXPECT_NEAR(logits[1], 2 * y * scale, 1e-12);
  }
}

TEST(ReferenceForwardTest, LaterTokensDoNotChangeEarlierLogits) {
  const auto model = ReferenceModel::Load(WriteTwoDimensionalModel("llama", true));
  ASSERT_TRUE(model.ok());
  const auto two = model->Logits(std::vector<int32_t>{0, 2}, 0);
  const auto three = model->Logits(std::vector<int32_t>{0, 2, 1}, 0);
  ASSERT_EQ(three.size(), 9U);
  EXPECT_TRUE(std::equal(two.begin(), two.end(), three.begin()));
}

TEST(ReferenceForwardTest, AMissingFileIsAnError) {
  EXPECT_EQ(ReferenceModel::Load("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(ReferenceForwardTest, DistanceIsRelativeToTheReference) {
  EXPECT_DOUBLE_EQ(RelativeDistance(std::vector<float>{3, 4}, std::vector<double>{3, 4}), 0.0);
  EXPECT_DOUBLE_EQ(RelativeDistance(std::vector<float>{0, 0}, std::vector<double>{3, 4}), 1.0);
}

}  // namespace
}  // namespace cairn::test
