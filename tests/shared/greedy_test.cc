// Greedy decoding with F32 and F16 weights against the float64 reference's continuations: a
// differing token is an error where the gap between the best and the second logit exceeds the
// tolerance of the logits.
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/kv/kv_format.h"
#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "tests/shared/reference_models.h"
#include "tests/tools/reference_forward.h"
#include "tests/tools/shared_folder.h"

namespace cairn::compute {
namespace {

struct Step {
  std::int32_t token;
  double gap;
};

struct Continuation {
  double norm = 0.0;  // of the reference's logits
  std::vector<Step> steps;
};

Continuation ReadContinuation(const std::string& shared, const std::string& model,
                              std::int64_t token_count) {
  std::istringstream text(test::CommandOutput(fmt::format(
      "/usr/bin/python3 -c 'import json, sys; "
      "p = json.load(open(sys.argv[1]))[\"models\"][sys.argv[2]][sys.argv[3]]; "
      "print(p[\"ref_norm\"], *(x for s in zip(p[\"greedy\"], p[\"gaps\"]) for x in s))' "
      "'{}/models/expected/expected.json' {} prompt_{}",
      shared, model, token_count)));
  Continuation continuation;
  text >> continuation.norm;
  Step step{};
  while (text >> step.token >> step.gap) {
    continuation.steps.push_back(step);
  }
  return continuation;
}

void ExpectGreedyWords(Model& model, KvFormat format, std::int64_t token_count,
                       const Continuation& expected, double tolerance) {
  auto tokens = test::ReferencePrompt(token_count, model.config().vocab_size);
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  DenseAttention attention(model.config(), format, model.config().context_length, model.pool());
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    const absl::Status status =
        model.Forward(tokens, attention.token_count(), attention, {logits, {}}, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const auto best =
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (best != expected.steps[i].token) {
      // From here on the two continue different texts.
      EXPECT_LT(expected.steps[i].gap, tolerance * expected.norm)
          << "step " << i << " chose " << best;
      return;
    }
    tokens = {best};
  }
}

TEST(SharedGreedyTest, ContinuationsAreTheReferences) {
  const std::string shared = test::SharedFolder();
  if (shared.empty()) {
    GTEST_SKIP() << test::kNoSharedFolder;
  }
  for (const test::SharedModel& entry : test::kSharedModels) {
    const std::string_view name = entry.name;
    const bool f32 = name.ends_with("-f32");
    if (!f32 && !name.ends_with("-f16")) {
      continue;
    }
    SCOPED_TRACE(entry.name);
    ModelOptions options;
    options.thread_count = 2;
    auto model = Model::Load(test::SharedModelPath(shared, entry), options);
    ASSERT_TRUE(model.ok()) << model.status();
    for (const std::int64_t token_count : {64, 1024}) {
      SCOPED_TRACE(token_count);
      const Continuation expected = ReadContinuation(shared, entry.name, token_count);
      ASSERT_FALSE(expected.steps.empty());
      ExpectGreedyWords(**model, f32 ? KvFormat::kF32 : KvFormat::kF16, token_count, expected,
                        f32 ? entry.tolerance_f32 : entry.tolerance_f16);
    }
  }
}

}  // namespace
}  // namespace cairn::compute
