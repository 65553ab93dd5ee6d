// Conversions between f32 and f16 rows, rounding to nearest even. Values beyond f16's range become
// infinities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::compute {

// f16 values are passed as their bits. Both spans have the same length; they do not overlap.
void F32ToF16(std::span<const float> from, std::span<std::uint16_t> to);
void F16ToF32(std::span<const std::uint16_t> from, std::span<float> to);

// The same for rows at any address: `to` has room for 2 * from.size() bytes, `from` has
// 2 * to.size().
void StoreF16Row(std::span<const float> from, std::byte* to);
void LoadF16Row(const std::byte* from, std::span<float> to);

}  // namespace cairn::compute
