// Finds weights that are no numbers. Reads the bytes once, at the speed of memory: of a quantised
// row only the scales.
//
// Threading:  a pure function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {

// The column of the first NaN or infinity in the row at `row`, which need not be aligned; -1: there
// is none. Where the scale or minimum of a block is one, all values of the block are.
std::int64_t FirstNotFinite(WeightType type, const std::byte* row, std::int64_t column_count);

}  // namespace cairn::compute
