// Sampler picks the next token from logits: the most likely one (temperature 0), or a random one.
// The steps, each of which can be off:
//   1. logit bias, then penalties (sampler_penalties.h), also at temperature 0
//   2. temperature: the logits are divided by it
//   3. top-k: the k most likely tokens stay
//   4. typical (Meister et al. 2022): the tokens whose surprise -log(p) is nearest to the expected
//      one, as many as hold this share of the probability
//   5. top-p (nucleus, Holtzman et al. 2020): the most likely tokens that hold this share
//   6. min-p: the tokens with at least this share of the most likely one's probability
//   7. a draw
// The shares of a step are of what the step before it left.
// Temperature comes first, as in vLLM and Transformers, so that top-p 0.9 always means 90 % of the
// distribution that is drawn from; an engine that has it last keeps fewer tokens above temperature
// 1 and more below. At temperature 1 there is no difference.
//
// Determinism: the same options, seed, tokens told and logits give the same tokens on every
//              platform: generator, exponential and summation are its own, probabilities are 40-bit
//              fixed-point numbers, and equal logits are ordered by id.
// Threading:  one thread at a time.
// Errors:     Create: INVALID_ARGUMENT for options out of range. Sample: INTERNAL for logits
//             without a finite largest value, which only a broken model gives; INVALID_ARGUMENT if
//             logit_bias bans all tokens. RestoreState: DATA_LOSS for bytes that SaveState did not
//             write.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/sampler/sampler_penalties.h"

namespace cairn::compute {

struct SamplerOptions {
  // Divides the logits: 0 takes the most likely token always; below 1 sharpens, above 1 flattens. 0
  // to 100.
  double temperature = 0.0;
  // Only the k most likely tokens are drawn from; 0: all. 0 to 2^22.
  std::int32_t top_k = 0;
  // Only the smallest set of most typical tokens that holds this share of the probability is drawn
  // from. Above 0, to 1: all.
  double typical_p = 1.0;
  // Only the smallest set of most likely tokens that holds this share of the probability is drawn
  // from. Above 0, to 1: all.
  double top_p = 1.0;
  // Only tokens at least this share as probable as the most likely one are drawn from. 0: all, to
  // 1.
  double min_p = 0.0;
  // Of the random generator.
  std::uint64_t seed = 0;
  PenaltyOptions penalties = {};

  absl::Status Validate() const;
};

class Sampler {
 public:
  static absl::StatusOr<Sampler> Create(const SamplerOptions& options);

  // These tokens came before the next one, the newest last: what the penalties count.
  void Observe(std::span<const std::int32_t> ids) { penalties_.Add(ids); }

  // The id of the next token, which from now on has come. `logits` holds one value for each id. One
  // random number is drawn unless the temperature is 0.
  absl::StatusOr<std::int32_t> Sample(std::span<const float> logits);

  // The random state as bytes, for a checkpoint. Options and observed tokens are not in it.
  std::string SaveState() const;
  absl::Status RestoreState(std::string_view bytes);

  const SamplerOptions& options() const { return options_; }

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    std::uint64_t weight;  // probability up to a factor
  };
  // The largest logit that is a number, and the lowest id that has it; -1: none.
  struct Best {
    float logit;
    std::int32_t id;
  };

  explicit Sampler(const SamplerOptions& options);
  static bool IsLikelier(const Candidate& a, const Candidate& b);
  static Best FindBest(std::span<const float> logits);
  // The logits after bias and penalties, in adjusted_.
  absl::StatusOr<Best> Adjust(std::span<const float> logits);
  std::int32_t Draw(std::span<const float> logits);
  double Exponent(float logit) const;
  // candidates_ become the tokens whose weight is not 0, in the order of their ids.
  void Collect(std::span<const float> logits);
  // The k most likely of them, the most likely first; all in the order of their ids if they are not
  // more.
  void CollectTopK(std::span<const float> logits);
  void KeepTypical();
  void KeepTopP();
  // Keeps the first candidates in the order of their badness, likelier ones first among equals, as
  // many as hold `share` of the weight. They are then in the opposite order. `classes_per_unit` of
  // badness, at least 0, changes nothing but time.
  template <typename Badness>
  void KeepShare(double share, double classes_per_unit, Badness badness);
  void KeepMinP();
  std::uint64_t TotalWeight() const;
  std::uint64_t NextRandom();

  SamplerOptions options_;
  SamplerPenalties penalties_;
  std::array<std::uint64_t, 4> state_{};
  // Of the call in progress.
  double largest_ = 0.0;  // logit
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
};

}  // namespace cairn::compute
