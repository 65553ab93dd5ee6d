// PackedMatrix: a weight matrix rearranged for the product kernels. 16 rows form a panel, and
// within a panel the values that one vector instruction needs are neighbours, so that a product
// reads memory in order, needs no horizontal sums, and uses each weight that it has loaded for
// several tokens. The bytes are the file's, in another order: packing loses nothing and takes no
// more memory. The layout is the same for every vector length.
//
// A panel of K columns (rows past the last are zero):
//   F32, F16, BF16:  for each column: 16 values.
//   Q8_0:  for each 32 columns: 8 groups of 16 rows x 4 int8 (512 bytes); then for each 32 columns
//   16 f16 scales. Q4_0:  for each 32 columns: 4 groups of 16 rows x 4 bytes, low halves columns
//   4g.., high halves 16 + 4g.. (256
//          bytes); then scales as Q8_0.
//   Q6_K:  for each 32 columns: low halves as Q4_0; then for each 32 columns the high bit pairs (2
//   groups of 16 rows x 4
//          bytes; bits 2i of group j hold columns 4 (2i + j)..); then for each 32 columns 16 rows x
//          2 int8 scales, as two runs of 16; then for each 256 columns 16 f16 scales.
// A panel's size is rounded up to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {

inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kPanelAlignBytes = 64;

// A view; the bytes belong to whoever packed them.
struct PackedMatrix {
  WeightType type = WeightType::kF32;
  std::int64_t row_count = 0;
  std::int64_t column_count = 0;
  const std::byte* data = nullptr;  // aligned to kPanelAlignBytes

  std::int64_t panel_count() const { return (row_count + kPanelRows - 1) / kPanelRows; }
};

// Where the parts of a panel begin, in bytes.
struct PanelLayout {
  std::int64_t high_bits;   // Q6_K
  std::int64_t sub_scales;  // Q6_K
  std::int64_t scales;      // quantised types
  std::int64_t panel_bytes;
};
PanelLayout LayoutOfPanel(WeightType type, std::int64_t column_count);

std::int64_t PackedBytes(WeightType type, std::int64_t row_count, std::int64_t column_count);

// Packs panel `panel` of the row-major matrix at `rows` (as GGUF stores it) to `to`, which holds a
// panel.
void PackPanel(WeightType type, const std::byte* rows, std::int64_t row_count,
               std::int64_t column_count, std::int64_t panel, std::byte* to);

}  // namespace cairn::compute
