// Log probabilities of tokens: natural logarithms of the softmax of the raw logits, that is of the
// model's own distribution, before bias, penalties and temperature.
//
// Determinism: to a few bits; the libraries' exp() and log() differ.
// Threading:   pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// What is told for one token at most.
inline constexpr std::int32_t kTopLogProbabilitiesMax = 20;

struct TokenLogProbability {
  std::int32_t id = 0;
  float value = 0.0F;  // at most 0
};

struct LogProbabilities {
  TokenLogProbability chosen;
  // The most likely tokens, the most likely first, the lower id first among equals. Whether the
  // chosen one is among them is as it comes. Fewer than asked for if fewer have a probability.
  std::vector<TokenLogProbability> top;
};

// REQUIRES: the largest of the logits that are numbers is finite; 0 <= chosen < their count; 0 <=
// top_count <= kTopLogProbabilitiesMax.
LogProbabilities ComputeLogProbabilities(std::span<const float> logits, std::int32_t chosen,
                                         std::int32_t top_count);

}  // namespace cairn::compute
