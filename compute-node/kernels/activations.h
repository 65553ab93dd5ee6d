// Activations: the left-hand side of matrix products, as the product kernels want it. Float weights
// use the f32 rows as they are. Quantised weights multiply integers: every 32 values become 16-bit
// numbers with one scale, each split in two int8 digits (value = scale * (254 * high + low)), so
// that 8-bit dot products can be used twice. Eight bits alone would cost 1 to 3 % of the logits;
// the second digit leaves rounding noise and is free in decoding, which waits for memory.
#pragma once

#include <cstdint>
#include <span>

namespace cairn::compute {

inline constexpr std::int64_t kActivationBlock = 32;

struct ActivationBlock {
  float scale;
  // Sums of the numbers 254 * high + low over each half of the block, and of its digits: they undo
  // the offset that unsigned weights carry, and multiply the minimum that some types have.
  std::int32_t sums[2];
  std::int16_t high_sum;
  std::int16_t low_sum;
  std::int8_t high[kActivationBlock];
  std::int8_t low[kActivationBlock];
};
static_assert(sizeof(ActivationBlock) == 80);

// Quantises one row; its length is a multiple of 32 and blocks.size() is length / 32. The scale of
// a block with NaN or infinity is not finite.
void QuantizeActivations(std::span<const float> row, std::span<ActivationBlock> blocks);

}  // namespace cairn::compute
