// Loading refuses models whose tensors do not fit their metadata.
#include "compute-node/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/model/forward.h"
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
  EXPECT_THAT(Message(type.status()), HasSubstr("IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"));
}

TEST(WeightsTest, RopeFactorsMustBePositive) {
  EXPECT_THAT(Message(LoadError(SmallModel().WithRopeFactor(0.0F))), HasSubstr("rope_freqs"));
  EXPECT_TRUE(LoadError(SmallModel().WithRopeFactor(2.0F)).ok());
}

}  // namespace
}  // namespace cairn::compute
