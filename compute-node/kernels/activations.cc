#include "compute-node/kernels/activations.h"

#include <bit>
#include <cmath>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/activations.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 254 * 127 + 126: the largest number whose high digit is still 127 after rounding to nearest.
constexpr float kNumberMax = 32384.0F;

using Floats = hn::CappedTag<float, 16>;

void QuantizeBlock(const float* HWY_RESTRICT from, ActivationBlock& block) {
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<std::int8_t, Floats> d8;
  const std::size_t lanes = hn::Lanes(df);
  // Magnitudes are ordered like their bits, in which NaN is the largest: a maximum of floats could
  // lose it.
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < kActivationBlock; i += lanes) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(df, from + i))));
  }
  const auto range = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  if (!std::isfinite(range)) {
    // There are no digits for it; a product with the scale is NaN whatever they are.
    block = {};
    block.scale = range;
    return;
  }
  // Below this the quotient would overflow; such a row is zero for every purpose.
  constexpr float kRangeMin = 1e-30F;
  const float inverse = range > kRangeMin ? kNumberMax / range : 0.0F;
  block.scale = range / kNumberMax;
  std::int32_t high_total = 0;
  std::int32_t low_total = 0;
  for (std::size_t half = 0; half < 2; ++half) {
    auto high_sum = hn::Zero(di);
    auto low_sum = hn::Zero(di);
    for (std::size_t i = half * 16; i < half * 16 + 16; i += lanes) {
      const auto number = hn::Round(hn::Mul(hn::LoadU(df, from + i), hn::Set(df, inverse)));
      const auto high = hn::Round(hn::Mul(number, hn::Set(df, 1.0F / 254.0F)));
      const auto low = hn::Sub(number, hn::Mul(high, hn::Set(df, 254.0F)));
      const auto high_int = hn::ConvertTo(di, high);
      const auto low_int = hn::ConvertTo(di, low);
      high_sum = hn::Add(high_sum, high_int);
      low_sum = hn::Add(low_sum, low_int);
      hn::StoreU(hn::DemoteTo(d8, high_int), d8, block.high + i);
      hn::StoreU(hn::DemoteTo(d8, low_int), d8, block.low + i);
    }
    const std::int32_t high_half = hn::GetLane(hn::SumOfLanes(di, high_sum));
    const std::int32_t low_half = hn::GetLane(hn::SumOfLanes(di, low_sum));
    block.sums[half] = 254 * high_half + low_half;
    high_total += high_half;
    low_total += low_half;
  }
  block.high_sum = static_cast<std::int16_t>(high_total);
  block.low_sum = static_cast<std::int16_t>(low_total);
}

void QuantizeRow(const float* HWY_RESTRICT row, ActivationBlock* HWY_RESTRICT blocks,
                 std::size_t block_count) {
  for (std::size_t b = 0; b < block_count; ++b) {
    QuantizeBlock(row + b * kActivationBlock, blocks[b]);
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(QuantizeRow);

void QuantizeActivations(std::span<const float> row, std::span<ActivationBlock> blocks) {
  CAIRN_CHECK_EQ(row.size(), blocks.size() * kActivationBlock);
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(row.data(), blocks.data(), blocks.size());
}

}  // namespace cairn::compute
#endif
