// Conversions between f32 and f16 rows, rounding to nearest even. Values beyond f16's range become
// infinities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kv/kv_format.h"

namespace cairn::compute {

// f16 values are passed as their bits. Both spans have the same length; they do not overlap.
void F32ToF16(std::span<const float> from, std::span<std::uint16_t> to);
void F16ToF32(std::span<const std::uint16_t> from, std::span<float> to);

// Stores a row of a KV entry in `format` at `to`, which has room for from.size() elements and need
// not be aligned.
void StoreKvRow(std::span<const float> from, KvFormat format, std::byte* to);
// The reverse.
void LoadKvRow(const std::byte* from, KvFormat format, std::span<float> to);

}  // namespace cairn::compute
