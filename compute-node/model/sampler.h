// Sampler picks the next token from logits: the most likely one (temperature 0), or a random one
// after temperature, top-k and top-p (nucleus sampling, Holtzman et al. 2020), in this order.
// Determinism: the same options, seed and logits give the same tokens on every platform: generator,
// exponential and
//              summation are its own, probabilities are 40-bit fixed-point numbers, and equal
//              logits are ordered by id.
// Threading:  one thread at a time.
// Errors:     Create: INVALID_ARGUMENT for options out of range. Sample: INTERNAL for logits
//             without a finite largest value, which only a broken model gives. RestoreState:
//             DATA_LOSS for bytes that SaveState did not write.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace cairn::compute {

struct SamplerOptions {
  // Divides the logits: 0 takes the most likely token always; below 1 sharpens, above 1 flattens. 0
  // to 100.
  double temperature = 0.0;
  // Only the k most likely tokens are drawn from; 0: all. 0 to 2^22.
  std::int32_t top_k = 0;
  // Only the smallest set of most likely tokens that holds this share of the probability is drawn
  // from. Above 0, to 1: all.
  double top_p = 1.0;
  // Of the random generator.
  std::uint64_t seed = 0;

  absl::Status Validate() const;
};

class Sampler {
 public:
  static absl::StatusOr<Sampler> Create(const SamplerOptions& options);

  // The id of the next token. `logits` holds one value for each id. One random number is drawn
  // unless the temperature is 0.
  absl::StatusOr<std::int32_t> Sample(std::span<const float> logits);

  // The random state as bytes, for a checkpoint. The options are not in it.
  std::string SaveState() const;
  absl::Status RestoreState(std::string_view bytes);

  const SamplerOptions& options() const { return options_; }

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    std::uint64_t weight;  // probability up to a factor
  };

  explicit Sampler(const SamplerOptions& options);
  void Collect(std::span<const float> logits, float largest);
  void KeepTopK();
  void KeepTopP();
  std::uint64_t NextRandom();

  SamplerOptions options_;
  std::array<std::uint64_t, 4> state_{};
  std::vector<Candidate> candidates_;  // of the call in progress
};

}  // namespace cairn::compute
