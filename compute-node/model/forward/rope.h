// The angles of a model's rotary position embedding (Su et al., "RoFormer", 2021), with what
// stretches it to longer contexts: linear interpolation of positions, YaRN (Peng et al., "YaRN:
// Efficient Context Window Extension of Large Language Models", 2023), and divisors that the file
// brings as a tensor (Llama 3).
//
// Threading:  pure functions.
#pragma once

#include <span>
#include <vector>

#include "compute-node/model/config.h"

namespace cairn::compute {

struct RotaryAngles {
  // Radians a position, head_dim / 2 of them.
  std::vector<double> frequencies;
  // What sines and cosines are multiplied by. As queries and keys are both rotated, scores grow
  // with its square; stored keys hold it once.
  double magnitude = 1;
};

// `divisors`: head_dim / 2 positive numbers, or none.
RotaryAngles MakeRotaryAngles(const ModelConfig& config, std::span<const float> divisors);

}  // namespace cairn::compute
