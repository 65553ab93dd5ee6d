// Compares the forward pass with the float64 reference's logits, within the tolerance table of the
// shared material.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/kv/kv_format.h"
#include "tests/shared/reference_models.h"
#include "tests/tools/reference_forward.h"
#include "tests/tools/shared_folder.h"
#include "tests/unit/model_reference/run_model.h"

namespace cairn::compute {
namespace {

class SharedLogitsTest : public testing::TestWithParam<test::SharedModel> {};

TEST_P(SharedLogitsTest, LogitsAreWithinTheTable) {
  const std::string shared = test::SharedFolder();
  const std::string path = test::SharedModelPath(shared, GetParam());
  for (const std::int64_t token_count : {64, 1024}) {
    const std::vector<double> expected = test::SharedLogits(shared, GetParam(), token_count);
    const auto tokens =
        test::ReferencePrompt(token_count, static_cast<std::int64_t>(expected.size()));
    EXPECT_LT(test::RelativeDistance(LastLogits(path, tokens, KvFormat::kF16), expected),
              GetParam().tolerance_f16)
        << token_count << " tokens, KV in f16";
    if (GetParam().tolerance_f32 > 0) {
      EXPECT_LT(test::RelativeDistance(LastLogits(path, tokens, KvFormat::kF32), expected),
                GetParam().tolerance_f32)
          << token_count << " tokens, KV in f32";
    }
  }
}

std::string TestName(const testing::TestParamInfo<test::SharedModel>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    c = c == '-' ? '_' : c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, SharedLogitsTest, testing::ValuesIn(test::kSharedModels),
                         TestName);

}  // namespace
}  // namespace cairn::compute
