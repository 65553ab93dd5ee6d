// Loading refuses models whose tensors do not fit their metadata.
#include "compute-node/model/forward/weights.h"

#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/kernels/convert.h"
#include "compute-node/model/forward/forward.h"
#include "tests/tools/model_maker.h"
#include "tests/unit/model/small_model.h"

namespace cairn::compute {
namespace {

using testing::HasSubstr;

absl::Status LoadError(const SmallModel& model) {
  const std::string path = testing::TempDir() + "/weights_test.gguf";
  EXPECT_TRUE(model.Write(path).ok());
  return Model::Load(path, {}).status();
}

TEST(WeightsTest, ACompleteModelLoads) {
  EXPECT_TRUE(LoadError(SmallModel()).ok()) << LoadError(SmallModel());
}

TEST(WeightsTest, EveryMissingTensorIsNamed) {
  for (const std::string& name : SmallModel().names()) {
    if (name == "output.weight") {
      continue;  // tied then
    }
    const absl::Status status = LoadError(SmallModel().Without(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(Message(status), HasSubstr(name));
  }
}

TEST(WeightsTest, EveryMisshapenTensorIsNamed) {
  for (const std::string& name : SmallModel().names()) {
    const absl::Status status = LoadError(SmallModel().Misshapen(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(Message(status), HasSubstr(name));
  }
}

TEST(WeightsTest, AnUnsupportedTypeIsNamedWithTheSupportedOnes) {
  GgufTensor tensor{"blk.0.ffn_up.weight", GgufTensorType::kIq2Xxs, {256}, 256, {}};
  const auto type = ComputableType(tensor);
  EXPECT_EQ(type.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(type.status()), HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_THAT(Message(type.status()), HasSubstr("IQ2_XXS"));
  EXPECT_THAT(Message(type.status()), HasSubstr("IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"));
}

TEST(WeightsTest, RopeFactorsMustBePositive) {
  EXPECT_THAT(Message(LoadError(SmallModel().WithRopeFactor(0.0F))), HasSubstr("rope_freqs"));
  EXPECT_TRUE(LoadError(SmallModel().WithRopeFactor(2.0F)).ok());
}

// Of every tensor, packed or not, in the first and in the last place.
TEST(WeightsTest, EveryNaNAndInfinityIsFoundAndNamed) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::string& name : SmallModel().names()) {
    EXPECT_THAT(Message(LoadError(SmallModel().Holding(kNaN, name, 0, 0))),
                HasSubstr("tensor '" + name + "': value 0 (row 0, column 0) is NaN or infinite"));
    EXPECT_THAT(Message(LoadError(SmallModel().Holding(-kInfinity, name, 0, 31))),
                HasSubstr("tensor '" + name + "': value 31 (row 0, column 31)"));
  }
  EXPECT_THAT(Message(LoadError(SmallModel().Holding(kInfinity, "blk.0.ffn_up.weight", 47, 5))),
              HasSubstr("value 1509 (row 47, column 5)"));
  // A value tensor's row within a fused one.
  EXPECT_THAT(
      Message(LoadError(SmallModel().Fused().Holding(kNaN, "blk.0.attn_qkv.weight", 60, 7))),
      HasSubstr("tensor 'blk.0.attn_qkv.weight': value 1927 (row 60, column 7)"));
  EXPECT_THAT(Message(LoadError(
                  SmallModel().WithRopeFactor(1.0F).Holding(kInfinity, "rope_freqs.weight", 0, 3))),
              HasSubstr("'rope_freqs.weight': value 3"));
}

TEST(WeightsTest, ABadScaleOfAQuantisedBlockIsFound) {
  const std::string path = testing::TempDir() + "/weights_test_scale.gguf";
  for (const std::string type : {"q8_0", "q4_k", "q6_k"}) {
    std::string bytes = test::MakeModel({.preset = "tiny-llama", .type = type})->ToString();
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(file.ok()) << file.status();
    const GgufTensor& tensor = *(*file)->FindTensor("blk.1.ffn_down.weight");
    // Two rows: the first counts, whichever thread sees one.
    const GgufBlockLayout layout = GgufTensorLayout(tensor.type);
    const std::int64_t scale_at = type == "q6_k" ? 208 : 0;
    for (const std::int64_t row : {200, 100}) {
      const std::ptrdiff_t at = tensor.data.data() - (*file)->data().data() +
                                row * tensor.row_bytes() + layout.block_bytes + scale_at;
      bytes.replace(static_cast<std::size_t>(at), 2, std::string_view("\0\x7c", 2));
    }
    std::ofstream(path, std::ios::binary) << bytes;
    ModelOptions options;
    options.thread_count = 3;
    const absl::Status status = Model::Load(path, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status),
                HasSubstr(fmt::format("'blk.1.ffn_down.weight': value {} (row 100, column {}, with "
                                      "its block of {} values)",
                                      std::int64_t{100} * 512 + layout.block_values,
                                      layout.block_values, layout.block_values)));
  }
}

// Such a model would run, and answer nonsense.
TEST(WeightsTest, TensorsThatAreNotComputedWithAreRefused) {
  for (const std::string name :
       {"blk.0.attn_q_norm.weight", "output.bias", "blk.1.attn_q.weight", "blk.-1.attn_q.weight",
        "blk.0.attn_norm.bias", "blk..attn_q.weight", "blk.0", "blk.0.attn_q.weights"}) {
    const absl::Status status = LoadError(SmallModel().With(name, {32}));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(Message(status), HasSubstr("tensor '" + name + "' is not part of a llama model"));
  }
}

TEST(WeightsTest, EveryBiasIsTaken) {
  SmallModel model;
  for (const std::string name : {"attn_q", "attn_output", "ffn_down"}) {
    model.With("blk.0." + name + ".bias", {32});
  }
  model.With("blk.0.attn_k.bias", {16}).With("blk.0.attn_v.bias", {16});
  model.With("blk.0.ffn_gate.bias", {48}).With("blk.0.ffn_up.bias", {48});
  EXPECT_TRUE(LoadError(model).ok()) << LoadError(model);
  EXPECT_THAT(Message(LoadError(model.With("blk.0.ffn_up.bias", {47}))),
              HasSubstr("'blk.0.ffn_up.bias' has shape 47"));
}

TEST(WeightsTest, ASurveyHasAllProblemsAndTheBytes) {
  const std::string path = testing::TempDir() + "/weights_test_survey.gguf";
  ASSERT_TRUE(SmallModel().Without("blk.0.ffn_up.weight").With("more", {32}).Write(path).ok());
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Weights::Survey(**file, *config).problems.size(), 2U);

  ASSERT_TRUE(SmallModel().Write(path).ok());
  file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const WeightsSurvey survey = Weights::Survey(**file, *config);
  EXPECT_TRUE(survey.problems.empty());
  // Rows in sixteens; the embedding is not packed beside an output matrix of its own.
  const std::int64_t rows = 32 + 16 + 16 + 32 + 48 + 48;
  const std::int64_t sums = std::int64_t{16} * 32 * 2;
  EXPECT_EQ(survey.packed_bytes, (rows * 32 + std::int64_t{2} * 32 * 48) * 4 + sums);
  EXPECT_EQ(survey.decode_bytes, survey.packed_bytes - sums);
}

std::unique_ptr<Weights> LoadWeights(const SmallModel& model, const std::string& path) {
  EXPECT_TRUE(model.Write(path).ok());
  const auto file = GgufFile::Open(path);
  const auto config = ReadModelConfig(**file);
  ThreadPool pool(2);
  auto weights = Weights::Load(**file, *config, pool, {}, nullptr);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

// As they are packed: F16, for each column the rows of a panel.
std::vector<float> QuerySumsOf(const SmallModel& model) {
  const auto weights = LoadWeights(model, testing::TempDir() + "/weights_test_sums.gguf");
  const PackedMatrix& sums = weights->layer(0).query_sum;
  EXPECT_EQ(sums.type, WeightType::kF16);
  EXPECT_EQ(sums.row_count, SmallModel::kKv);
  std::vector<float> rows(static_cast<std::size_t>(SmallModel::kKv * SmallModel::kEmbedding));
  LoadF16Row(sums.data, rows);
  return rows;
}

TEST(WeightsTest, QuerySumsAreThoseOfTheHeadsThatShareAKvHead) {
  const std::string path = testing::TempDir() + "/weights_test_sums.gguf";
  const std::vector<float> sums = QuerySumsOf(SmallModel());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensor& query = *(*file)->FindTensor("blk.0.attn_q.weight");
  std::vector<float> row(SmallModel::kEmbedding);
  std::vector<float> expected(sums.size());
  for (std::int64_t i = 0; i < SmallModel::kQuery; ++i) {
    DequantizeRow(WeightType::kF32, query.data.data() + i * query.row_bytes(), row);
    // Heads of 8, two to a KV head.
    const std::int64_t sum_row = i / 16 * 8 + i % 8;
    for (std::size_t j = 0; j < row.size(); ++j) {
      expected[j * kPanelRows + static_cast<std::size_t>(sum_row)] += row[j];
    }
  }
  EXPECT_THAT(sums, testing::Pointwise(testing::FloatNear(1e-3F), expected));
  EXPECT_EQ(QuerySumsOf(SmallModel().Fused()), sums);
  // What F16 has no room for does not become infinite.
  const std::vector<float> large =
      QuerySumsOf(SmallModel().Holding(-1e30F, "blk.0.attn_q.weight", 0, 5));
  EXPECT_EQ(large[5 * kPanelRows], -65504.0F);
}

TEST(WeightsTest, WithoutGroupsQueriesAreTheirSums) {
  const auto weights =
      LoadWeights(SmallModel().Ungrouped(), testing::TempDir() + "/weights_test_ungrouped.gguf");
  const LayerWeights& layer = weights->layer(0);
  EXPECT_EQ(layer.query_sum.data, layer.query.data);
  EXPECT_EQ(layer.query_sum.type, layer.query.type);
  EXPECT_EQ(layer.query_sum.row_count, layer.query.row_count);
}

}  // namespace
}  // namespace cairn::compute
