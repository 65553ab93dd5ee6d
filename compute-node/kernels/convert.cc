#include "compute-node/kernels/convert.h"

#include <cstring>

#include "common/base/check.h"
#include "compute-node/kernels/dequantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/convert.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Halves = hn::Rebind<hwy::float16_t, Floats>;

// Without instructions for it, Highway truncates and knows no infinities.
inline constexpr bool kHasF16 = HWY_TARGET != HWY_SSSE3 && HWY_TARGET != HWY_SCALAR;

// `to` holds f16 bits and may be unaligned. Tails go through a padded vector.
void ToF16(const float* HWY_RESTRICT from, std::size_t count, std::byte* HWY_RESTRICT to) {
  if (!kHasF16) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t bits = F32ToF16Bits(from[i]);
      std::memcpy(to + i * 2, &bits, 2);
    }
    return;
  }
  const Floats df;
  const Halves dh;
  const std::size_t lanes = hn::Lanes(df);
  HWY_ALIGN float tail[16] = {};
  HWY_ALIGN hwy::float16_t halves[16];
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t n = count - i < lanes ? count - i : lanes;
    const float* source = from + i;
    if (n < lanes) {
      std::memcpy(tail, source, n * sizeof(float));
      source = tail;
    }
    hn::Store(hn::DemoteTo(dh, hn::LoadU(df, source)), dh, halves);
    std::memcpy(to + i * 2, halves, n * 2);
  }
}

void ToF32(const std::byte* HWY_RESTRICT from, std::size_t count, float* HWY_RESTRICT to) {
  if (!kHasF16) {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = LoadF16(from + i * 2);
    }
    return;
  }
  const Floats df;
  const Halves dh;
  const std::size_t lanes = hn::Lanes(df);
  HWY_ALIGN hwy::float16_t halves[16] = {};
  HWY_ALIGN float tail[16];
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t n = count - i < lanes ? count - i : lanes;
    std::memcpy(halves, from + i * 2, n * 2);
    const auto v = hn::PromoteTo(df, hn::Load(dh, halves));
    if (n == lanes) {
      hn::StoreU(v, df, to + i);
    } else {
      hn::Store(v, df, tail);
      std::memcpy(to + i, tail, n * sizeof(float));
    }
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(ToF16);
HWY_EXPORT(ToF32);

void F32ToF16(std::span<const float> from, std::span<std::uint16_t> to) {
  CAIRN_CHECK_EQ(from.size(), to.size());
  HWY_DYNAMIC_DISPATCH(ToF16)(from.data(), from.size(), std::as_writable_bytes(to).data());
}

void F16ToF32(std::span<const std::uint16_t> from, std::span<float> to) {
  CAIRN_CHECK_EQ(from.size(), to.size());
  HWY_DYNAMIC_DISPATCH(ToF32)(std::as_bytes(from).data(), from.size(), to.data());
}

void StoreF16Row(std::span<const float> from, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(ToF16)(from.data(), from.size(), to);
}

void LoadF16Row(const std::byte* from, std::span<float> to) {
  HWY_DYNAMIC_DISPATCH(ToF32)(from, to.size(), to.data());
}

}  // namespace cairn::compute
#endif
