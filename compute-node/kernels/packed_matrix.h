// PackedMatrix: a weight matrix rearranged for the product kernels. 16 rows form a panel, and
// within a panel the values that one vector instruction needs are neighbours, so that a product
// reads memory in order, needs no horizontal sums, and uses each weight that it has loaded for
// several tokens. The bytes are the file's, in another order: packing loses nothing and takes no
// more memory. The layout is the same for every vector length.
//
// A panel of float weights (rows past the last are zero): for each column 16 values.
//
// A panel of quantised weights consists of these parts, as far as the type has them
// (quant_block.h); a run is 32 columns, and a group is 16 rows x 4 bytes.
//   bytes:       for each run 8 groups; byte j of group g is column 4g + j. Q8_0 only.
//   nibbles:     for each run 4 groups; byte j of group g: columns 4g + j low, 16 + 4g + j high.
//   pairs:       for each run 2 groups; byte j of group g: bits 2i hold column 4 (2i + g) + j.
//   bits:        for each run 1 group; byte j: bit i holds column 4i + j.
//   sub-scales:  bytes for 16 rows each. In bytes (Q6_K, Q2_K): for each run 2, of its halves. In
//                six bits (Q3_K, Q4_K, Q5_K): for each 256 columns 8 with the low four bits of the
//                two numbers of a run (SixBits), the first one's low, then 4 with the high two: of
//                an even run in the low half of the byte, of an odd one in the high half.
//   scales:      for each block 16 f16.
//   minimums:    for each block 16 f16.
// A panel's size is rounded up to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {

inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kPanelAlignBytes = 64;
// Of all rows for 256 columns, where sub-scales have six bits.
inline constexpr std::int64_t kSixBitBytes = 12 * kPanelRows;

// A view; the bytes belong to whoever packed them.
struct PackedMatrix {
  WeightType type = WeightType::kF32;
  std::int64_t row_count = 0;
  std::int64_t column_count = 0;
  const std::byte* data = nullptr;  // aligned to kPanelAlignBytes

  std::int64_t panel_count() const { return (row_count + kPanelRows - 1) / kPanelRows; }
};

// Where the parts of a panel begin, in bytes; bytes or nibbles, or else pairs, come first.
struct PanelLayout {
  std::int64_t pairs;
  std::int64_t bits;
  std::int64_t sub_scales;
  std::int64_t scales;
  std::int64_t mins;
  std::int64_t panel_bytes;
};
PanelLayout LayoutOfPanel(WeightType type, std::int64_t column_count);

std::int64_t PackedBytes(WeightType type, std::int64_t row_count, std::int64_t column_count);

// Packs panel `panel` of the row-major matrix at `rows` (as GGUF stores it) to `to`, which holds a
// panel.
void PackPanel(WeightType type, const std::byte* rows, std::int64_t row_count,
               std::int64_t column_count, std::int64_t panel, std::byte* to);

}  // namespace cairn::compute
