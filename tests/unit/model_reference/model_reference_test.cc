// The forward pass against the tests' own float64 reference: every tiny preset in every weight
// type.
#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "common/kv/kv_format.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/reference_forward.h"
#include "tests/unit/model_reference/run_model.h"

namespace cairn::compute {
namespace {

// Relative L2 distance of the logits. Far below what engines allow themselves whose activations
// have eight bits (4e-2), so that a small error in a scale or a minimum shows.
struct Tolerance {
  const char* type;
  double kv_f16;
  double kv_f32;
};
void PrintTo(const Tolerance& tolerance, std::ostream* out) { *out << tolerance.type; }

constexpr Tolerance kCommonTypes[] = {{"f32", 2e-3, 1e-4},
                                      {"f16", 2e-3, 1e-4},
                                      {"bf16", 2e-3, 1e-4},
                                      {"q8_0", 2e-3, 4e-4},
                                      {"q4_0", 2e-3, 4e-4}};
constexpr Tolerance kOtherTypes[] = {
    {"q4_1", 2e-3, 4e-4}, {"q5_0", 2e-3, 4e-4}, {"q5_1", 2e-3, 4e-4},  {"iq4_nl", 2e-3, 4e-4},
    {"q2_k", 2e-3, 4e-4}, {"q3_k", 2e-3, 4e-4}, {"q4_k", 2e-3, 4e-4},  {"q4_k_m", 2e-3, 4e-4},
    {"q5_k", 2e-3, 4e-4}, {"q6_k", 2e-3, 4e-4}, {"iq4_xs", 2e-3, 4e-4}};

class ModelReferenceTest : public testing::TestWithParam<std::tuple<const char*, Tolerance>> {};

TEST_P(ModelReferenceTest, LogitsAreWithinTheTolerance) {
  const auto& [preset, tolerance] = GetParam();
  const std::string path =
      testing::TempDir() + "/model_reference_" + preset + "_" + tolerance.type + ".gguf";
  const absl::Status written =
      test::WriteModel({.preset = preset, .type = tolerance.type, .seed = 77}, path);
  ASSERT_TRUE(written.ok()) << written;
  const auto reference = test::ReferenceModel::Load(path);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto tokens = test::ReferencePrompt(301, reference->vocab_size());
  for (const std::size_t token_count : {std::size_t{64}, tokens.size()}) {
    const auto prompt = std::span(tokens).first(token_count);
    const std::vector<double> expected =
        reference->Logits(prompt, static_cast<std::int64_t>(token_count) - 1);
    EXPECT_LT(test::RelativeDistance(LastLogits(path, prompt, KvFormat::kF16), expected),
              tolerance.kv_f16)
        << token_count << " tokens, KV in f16";
    EXPECT_LT(test::RelativeDistance(LastLogits(path, prompt, KvFormat::kF32, 97), expected),
              tolerance.kv_f32)
        << token_count << " tokens, KV in f32, in batches of 97";
  }
}

std::string TestName(const testing::TestParamInfo<std::tuple<const char*, Tolerance>>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).type;
  for (char& c : name) {
    c = c == '-' ? '_' : c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ModelReferenceTest,
                         testing::Combine(testing::Values("tiny-llama", "tiny-llama3", "tiny-qwen2",
                                                          "tiny-mistral", "tiny-deep"),
                                          testing::ValuesIn(kCommonTypes)),
                         TestName);

// What is added to the same shapes: rotary scaling, biases.
INSTANTIATE_TEST_SUITE_P(Additions, ModelReferenceTest,
                         testing::Combine(testing::Values("linear-llama", "yarn-llama",
                                                          "yarn-qwen2", "biased-llama"),
                                          testing::Values(kCommonTypes[0], kCommonTypes[3])),
                         TestName);

// Not the shapes of heads again. Rows of tiny-deep are too short for blocks of 256: its files hold
// several types.
INSTANTIATE_TEST_SUITE_P(Types, ModelReferenceTest,
                         testing::Combine(testing::Values("tiny-llama", "tiny-qwen2", "tiny-deep"),
                                          testing::ValuesIn(kOtherTypes)),
                         TestName);

}  // namespace
}  // namespace cairn::compute
