// Checks the tests' own reference against an independent one.
#include "tests/tools/reference_forward.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/shared/reference_models.h"
#include "tests/tools/shared_folder.h"

namespace cairn::test {
namespace {

class SharedReferenceTest : public testing::TestWithParam<SharedModel> {};

TEST_P(SharedReferenceTest, OurReferenceGivesTheSameLogits) {
  const std::string shared = SharedFolder();
  const auto model = ReferenceModel::Load(SharedModelPath(shared, GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  // The stored logits are rounded to float.
  constexpr double kTolerance = 1e-6;
  const bool also_long = std::string(GetParam().name) == "tiny-llama3-f32";
  for (const int64_t token_count : {64, also_long ? 1024 : 64}) {
    const std::vector<double> ours =
        model->Logits(ReferencePrompt(token_count, model->vocab_size()), token_count - 1);
    const std::vector<float> rounded(ours.begin(), ours.end());
    EXPECT_LT(RelativeDistance(rounded, SharedLogits(shared, GetParam(), token_count)), kTolerance)
        << token_count << " tokens";
  }
}

std::string TestName(const testing::TestParamInfo<SharedModel>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    c = c == '-' ? '_' : c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, SharedReferenceTest, testing::ValuesIn(kSharedModels), TestName);

}  // namespace
}  // namespace cairn::test
