// What the sampler is compared with: every step written down as its paper has it, over all tokens,
// with full sorts and no shortcut. Weights and random numbers are the sampler's promise and thus
// the same; everything else is its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "compute-node/model/sampler/sampler.h"
#include "tests/tools/rng.h"

namespace cairn::compute {

struct ReferenceToken {
  std::int32_t id;
  double logit;
  std::uint64_t weight;
};

// floor(exp(x) * 2^40) by the Taylor series, slowly.
inline std::uint64_t ReferenceWeight(double x) {
  if (x < -64.0) return 0;
  constexpr double kLn2 = 0.693147180559945309417232121458;
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;
  double sum = 1.0;
  for (int n = 14; n >= 1; --n) sum = 1.0 + sum * rest / n;
  return static_cast<std::uint64_t>(std::ldexp(sum, static_cast<int>(power) + 40));
}

inline std::vector<float> ReferencePenalties(std::vector<float> logits,
                                             const PenaltyOptions& options,
                                             const std::vector<std::int32_t>& history) {
  for (const LogitBias& bias : options.logit_bias) {
    float& logit = logits.at(static_cast<std::size_t>(bias.id));
    logit = bias.bias <= -100 ? -std::numeric_limits<float>::infinity()
                              : static_cast<float>(static_cast<double>(logit) + bias.bias);
  }
  std::size_t first = 0;
  const auto last_tokens = static_cast<std::size_t>(options.penalty_last_tokens);
  if (options.penalty_last_tokens >= 0 && history.size() > last_tokens) {
    first = history.size() - last_tokens;
  }
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const auto count = std::count(history.begin() + static_cast<std::ptrdiff_t>(first),
                                  history.end(), static_cast<std::int32_t>(id));
    if (count == 0) continue;
    auto value = static_cast<double>(logits[id]);
    if (value > 0) {
      value /= options.repetition_penalty;
    } else {
      value *= options.repetition_penalty;
    }
    value -= static_cast<double>(count) * options.frequency_penalty;
    value -= options.presence_penalty;
    logits[id] = static_cast<float>(value);
  }
  return logits;
}

inline double ReferenceTotal(const std::vector<ReferenceToken>& tokens) {
  double total = 0;
  for (const ReferenceToken& token : tokens) total += static_cast<double>(token.weight);
  return total;
}

// The shortest beginning of `tokens` that holds the share, backwards, as the sampler keeps it.
inline void ReferenceKeepShare(std::vector<ReferenceToken>& tokens, double share) {
  const double wanted = std::floor(ReferenceTotal(tokens) * share);
  double sum = 0;
  std::size_t count = 0;
  while (count < tokens.size() && (count == 0 || sum < wanted)) {
    sum += static_cast<double>(tokens[count++].weight);
  }
  tokens.resize(count);
  std::reverse(tokens.begin(), tokens.end());
}

// The tokens that may be drawn, in the order in which the draw goes through them.
inline std::vector<ReferenceToken> ReferenceTokens(const std::vector<float>& logits,
                                                   const SamplerOptions& options) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) {
    if (static_cast<double>(logit) > largest) largest = static_cast<double>(logit);
  }
  if (std::isinf(largest)) return {};  // all banned
  const auto exponent = [&](const ReferenceToken& token) {
    return (token.logit - largest) / options.temperature;
  };
  const auto likelier = [](const ReferenceToken& a, const ReferenceToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  std::vector<ReferenceToken> tokens;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) continue;
    ReferenceToken token{static_cast<std::int32_t>(id), static_cast<double>(logits[id]), 0};
    token.weight = ReferenceWeight(exponent(token));
    if (token.weight > 0) tokens.push_back(token);
  }
  const auto top_k = static_cast<std::size_t>(options.top_k);
  if (top_k > 0 && tokens.size() > top_k) {
    std::sort(tokens.begin(), tokens.end(), likelier);
    tokens.resize(top_k);
  }
  if (options.typical_p < 1) {
    // Surprise against entropy, from the probabilities.
    const double total = ReferenceTotal(tokens);
    double entropy = 0;
    for (const ReferenceToken& token : tokens) {
      const double p = static_cast<double>(token.weight) / total;
      entropy -= p * std::log(p);
    }
    const auto shift = [&](const ReferenceToken& token) {
      return std::abs(std::log(total / std::ldexp(1.0, 40)) - exponent(token) - entropy);
    };
    std::sort(tokens.begin(), tokens.end(), [&](const ReferenceToken& a, const ReferenceToken& b) {
      // Two formulas for one number differ in the last bits; equal logits must stay equal.
      return a.logit != b.logit ? shift(a) < shift(b) : a.id < b.id;
    });
    ReferenceKeepShare(tokens, options.typical_p);
  }
  if (options.top_p < 1) {
    std::sort(tokens.begin(), tokens.end(), likelier);
    ReferenceKeepShare(tokens, options.top_p);
  }
  if (options.min_p > 0) {
    double best = 0;
    for (const ReferenceToken& token : tokens) {
      best = std::max(best, static_cast<double>(token.weight));
    }
    std::vector<ReferenceToken> kept;
    for (const ReferenceToken& token : tokens) {
      if (static_cast<double>(token.weight) >= options.min_p * best) kept.push_back(token);
    }
    tokens = kept;
  }
  return tokens;
}

// xoshiro256++ from a splitmix64 seed, and the draw from it.
class ReferenceDraw {
 public:
  explicit ReferenceDraw(std::uint64_t seed) : rng_(seed) {}

  std::int32_t operator()(const std::vector<ReferenceToken>& tokens) {
    __extension__ using Wide = unsigned __int128;
    std::uint64_t total = 0;
    for (const ReferenceToken& token : tokens) total += token.weight;
    auto draw = static_cast<std::uint64_t>(Wide{rng_.Next()} * total >> 64);
    for (const ReferenceToken& token : tokens) {
      if (draw < token.weight) return token.id;
      draw -= token.weight;
    }
    return -1;
  }

 private:
  test::Rng rng_;
};

}  // namespace cairn::compute
