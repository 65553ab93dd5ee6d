#include "compute-node/kernels/ops.h"

#include <cmath>
#include <cstring>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/ops.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;

void RmsNormRow(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, float epsilon,
                std::size_t count, float* out) {
  const Floats df;
  const std::size_t lanes = hn::Lanes(df);
  auto squares = hn::Zero(df);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(df, x + i);
    squares = hn::MulAdd(v, v, squares);
  }
  float sum = hn::GetLane(hn::SumOfLanes(df, squares));
  for (; i < count; ++i) {
    sum += x[i] * x[i];
  }
  float scale = 1.0F / std::sqrt(sum / static_cast<float>(count) + epsilon);
  if (!std::isfinite(sum)) {
    double large_sum = 0.0;
    for (i = 0; i < count; ++i) {
      large_sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    scale = static_cast<float>(1.0 / std::sqrt(large_sum / static_cast<double>(count)));
  }
  for (i = 0; i + lanes <= count; i += lanes) {
    const auto v = hn::Mul(hn::LoadU(df, x + i), hn::Set(df, scale));
    hn::StoreU(hn::Mul(v, hn::LoadU(df, weight + i)), df, out + i);
  }
  for (; i < count; ++i) {
    out[i] = x[i] * scale * weight[i];
  }
}

// Tails go through the same instructions in a padded vector, so that every element is computed
// alike.
void SiluMulRow(const float* HWY_RESTRICT up, std::size_t count, float* HWY_RESTRICT gate) {
  const Floats df;
  const std::size_t lanes = hn::Lanes(df);
  const auto one = hn::Set(df, 1.0F);
  HWY_ALIGN float gate_tail[16] = {};
  HWY_ALIGN float up_tail[16] = {};
  for (std::size_t i = 0; i < count; i += lanes) {
    const bool whole = i + lanes <= count;
    if (!whole) {
      std::memcpy(gate_tail, gate + i, (count - i) * sizeof(float));
      std::memcpy(up_tail, up + i, (count - i) * sizeof(float));
    }
    const auto g = whole ? hn::LoadU(df, gate + i) : hn::Load(df, gate_tail);
    const auto u = whole ? hn::LoadU(df, up + i) : hn::Load(df, up_tail);
    // Beyond this the sigmoid is zero for every purpose, and Exp is not defined for much larger
    // arguments.
    const auto exponent = hn::Min(hn::Neg(g), hn::Set(df, 80.0F));
    const auto result = hn::Mul(hn::Div(g, hn::Add(one, hn::Exp(df, exponent))), u);
    if (whole) {
      hn::StoreU(result, df, gate + i);
    } else {
      hn::Store(result, df, gate_tail);
      std::memcpy(gate + i, gate_tail, (count - i) * sizeof(float));
    }
  }
}

void RopeHalvesRow(const float* HWY_RESTRICT cosines, const float* HWY_RESTRICT sines,
                   std::size_t half, float* HWY_RESTRICT head) {
  const hn::CappedTag<float, 4> df;
  const std::size_t lanes = hn::Lanes(df);
  std::size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = hn::LoadU(df, head + i);
    const auto b = hn::LoadU(df, head + half + i);
    const auto c = hn::LoadU(df, cosines + i);
    const auto s = hn::LoadU(df, sines + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, head + i);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), df, head + half + i);
  }
  for (; i < half; ++i) {
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = a * sines[i] + b * cosines[i];
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(SiluMulRow);
HWY_EXPORT(RopeHalvesRow);

void RmsNorm(std::span<const float> x, std::span<const float> weight, float epsilon,
             std::span<float> out) {
  CAIRN_CHECK_EQ(x.size(), weight.size());
  CAIRN_CHECK_EQ(x.size(), out.size());
  HWY_DYNAMIC_DISPATCH(RmsNormRow)(x.data(), weight.data(), epsilon, x.size(), out.data());
}

void AddTo(std::span<const float> y, std::span<float> x) {
  CAIRN_CHECK_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += y[i];
  }
}

void SiluMul(std::span<const float> up, std::span<float> gate) {
  CAIRN_CHECK_EQ(up.size(), gate.size());
  HWY_DYNAMIC_DISPATCH(SiluMulRow)(up.data(), up.size(), gate.data());
}

void RopeAdjacent(const RopeAngles& angles, std::span<float> head) {
  CAIRN_CHECK_EQ(angles.cosines.size() * 2, head.size());
  for (std::size_t i = 0; i < angles.cosines.size(); ++i) {
    const float a = head[2 * i];
    const float b = head[2 * i + 1];
    head[2 * i] = a * angles.cosines[i] - b * angles.sines[i];
    head[2 * i + 1] = a * angles.sines[i] + b * angles.cosines[i];
  }
}

void RopeHalves(const RopeAngles& angles, std::span<float> head) {
  CAIRN_CHECK_EQ(angles.cosines.size() * 2, head.size());
  HWY_DYNAMIC_DISPATCH(RopeHalvesRow)
  (angles.cosines.data(), angles.sines.data(), angles.cosines.size(), head.data());
}

void ComputeRopeAngles(std::int64_t position, std::span<const double> frequencies, double magnitude,
                       std::span<float> cosines, std::span<float> sines) {
  CAIRN_CHECK_EQ(frequencies.size(), cosines.size());
  CAIRN_CHECK_EQ(frequencies.size(), sines.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    cosines[i] = static_cast<float>(magnitude * std::cos(angle));
    sines[i] = static_cast<float>(magnitude * std::sin(angle));
  }
}

}  // namespace cairn::compute
#endif
