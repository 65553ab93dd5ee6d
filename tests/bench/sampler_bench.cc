// Time to choose one token of a large vocabulary, for the usual settings.
//
// usage: sampler_bench [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/base/check.h"
#include "compute-node/model/sampler/log_probabilities.h"
#include "compute-node/model/sampler/sampler.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

constexpr std::size_t kVocabCount = 152064;
constexpr std::size_t kPromptTokens = 4096;

// A wide hill, and a few tokens far above it, as models give.
std::vector<float> MakeLogits(test::Rng& rng) {
  std::vector<float> logits(kVocabCount);
  for (float& logit : logits) logit = rng.Normal() * 3.0F;
  for (int i = 0; i < 30; ++i) logits[rng.Below(kVocabCount)] += 10.0F;
  return logits;
}

// The median.
template <typename Run>
void Measure(const char* name, int round_count, const Run& run) {
  std::vector<double> times_us;
  for (int i = 0; i < round_count; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    times_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(times_us.begin(), times_us.end());
  std::printf("%-44s %8.0f us\n", name, times_us[times_us.size() / 2]);
}

void Main(int round_count) {
  test::Rng rng(1);
  const std::vector<float> logits = MakeLogits(rng);
  std::vector<std::int32_t> prompt(kPromptTokens);
  for (std::int32_t& id : prompt) id = static_cast<std::int32_t>(rng.Below(kVocabCount));
  const PenaltyOptions penalties{.repetition_penalty = 1.1, .penalty_last_tokens = -1};
  const struct {
    const char* name;
    SamplerOptions options;
  } settings[] = {
      {"greedy", {}},
      {"greedy, penalties", {.penalties = penalties}},
      {"temperature 0.8", {.temperature = 0.8}},
      {"top-k 40, top-p 0.95, min-p 0.05",
       {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05}},
      {"the same with penalties",
       {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .penalties = penalties}},
      {"top-p 0.95", {.temperature = 0.8, .top_p = 0.95}},
      {"min-p 0.05", {.temperature = 0.8, .min_p = 0.05}},
      {"typical 0.95", {.temperature = 0.8, .typical_p = 0.95}},
  };
  for (const auto& [name, options] : settings) {
    Sampler sampler = Sampler::Create(options).value();
    sampler.Observe(prompt);
    Measure(name, round_count, [&] { CAIRN_CHECK(sampler.Sample(logits).ok()); });
  }
  Measure("log probabilities, top 5", round_count,
          [&] { CAIRN_CHECK_EQ(ComputeLogProbabilities(logits, 7, 5).top.size(), 5U); });
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  const int round_count = argc > 1 ? std::atoi(argv[1]) : 201;
  cairn::compute::Main(std::max(round_count, 1));
  return 0;
}
