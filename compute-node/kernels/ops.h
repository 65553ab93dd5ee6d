// The small operations between matrix products, one token row at a time. Each row's result depends
// on that row only.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstdint>
#include <span>

namespace cairn::compute {

// out = x / sqrt(mean(x^2) + epsilon) * weight. out may be x.
void RmsNorm(std::span<const float> x, std::span<const float> weight, float epsilon,
             std::span<float> out);

// x += y.
void AddTo(std::span<const float> y, std::span<float> x);

// gate = gate / (1 + exp(-gate)) * up: the gated activation of the feed-forward network.
void SiluMul(std::span<const float> up, std::span<float> gate);

// Which numbers of a head rotary embedding turns together.
enum class RotaryPairs : std::uint8_t {
  kAdjacent,  // (2i, 2i + 1): llama
  kHalves,    // (i, i + head_dim / 2): qwen2
};

// One position's rotation: pairs (cos, sin) for the head_dim / 2 frequencies.
struct RopeAngles {
  std::span<const float> cosines;
  std::span<const float> sines;
};

// Rotates one head (Su et al., "RoFormer", 2021). Adjacent pairs (2i, 2i + 1), or halves (i, i +
// head_dim / 2).
void RopeAdjacent(const RopeAngles& angles, std::span<float> head);
void RopeHalves(const RopeAngles& angles, std::span<float> head);

// Angles of `position`: cosines[i], sines[i] of position * frequencies[i], times `magnitude`,
// computed in double precision, because f32 angles of long contexts are off by more than the
// weights are.
void ComputeRopeAngles(std::int64_t position, std::span<const double> frequencies, double magnitude,
                       std::span<float> cosines, std::span<float> sines);

}  // namespace cairn::compute
