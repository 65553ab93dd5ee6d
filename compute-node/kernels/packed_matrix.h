// PackedMatrix: a weight matrix rearranged for the product kernels. 16 rows form a panel, and
// within a panel the values that one vector instruction needs are neighbours, so that a product
// reads memory in order, needs no horizontal sums, and uses each weight that it has loaded for
// several tokens. The bytes are the file's, in another order: packing loses nothing and takes no
// more memory. The layout is the same for every vector length.
//
// A panel of float weights (rows past the last are zero): for each column 16 values.
//
// A panel of quantised weights is a row of stretches, so that a product reads one stream from its
// first byte to its last. A stretch is the 256 columns of a block, or two blocks of 32 columns. It
// begins with what its scales are made of, as far as the type has it (quant_block.h):
//   scales:      for each block 16 f16.
//   minimums:    for each block 16 f16.
//   sub-scales:  bytes for 16 rows each. In bytes (Q6_K, Q2_K): for each run of 32 columns 2, of
//                its halves. In six bits (Q3_K, Q4_K, Q5_K): 8 with the low four bits of the two
//                numbers of a run (SixBits), the first one's low, then 4 with the high two: of an
//                even run in the low half of the byte, of an odd one in the high half. IQ4_XS: as
//                in the file, 2 with the high two bits of four runs' numbers each, then 4 with the
//                low four bits of two.
// Then comes for each run what its numbers are made of; a group is 16 rows x 4 bytes:
//   bytes:       8 groups; byte j of group g is column 4g + j. Q8_0 only.
//   nibbles:     4 groups; byte j of group g: columns 4g + j low, 16 + 4g + j high.
//   pairs:       2 groups; byte j of group g: bits 2i hold column 4 (2i + g) + j.
//   bits:        1 group; byte j: bit i holds column 4i + j.
// A panel of an odd number of blocks of 32 ends with half a stretch of zeros. Its size is rounded
// up to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute-node/kernels/quant_block.h"

namespace cairn::compute {

inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kPanelAlignBytes = 64;
inline constexpr std::int64_t kGroupBytes = 4 * kPanelRows;
// A view; the bytes belong to whoever packed them.
struct PackedMatrix {
  WeightType type = WeightType::kF32;
  std::int64_t row_count = 0;
  std::int64_t column_count = 0;
  const std::byte* data = nullptr;  // aligned to kPanelAlignBytes

  std::int64_t panel_count() const { return (row_count + kPanelRows - 1) / kPanelRows; }
};

// A stretch of quantised weights: where its parts begin, in bytes. The scales come first.
struct StretchLayout {
  std::int64_t runs = 0;
  std::int64_t mins_at = 0;
  std::int64_t sub_scales_at = 0;
  std::int64_t runs_at = 0;
  // In a run; its bytes or nibbles come first.
  std::int64_t pairs_at = 0;
  std::int64_t bits_at = 0;
  std::int64_t run_bytes = 0;
  std::int64_t bytes = 0;
};

// Of a row's sub-scales in a stretch.
constexpr std::int64_t SubScaleBytes(SubScales sub_scales) {
  switch (sub_scales) {
    case SubScales::kNone:
      return 0;
    case SubScales::kSigned:
    case SubScales::kNibbles:
      return 16;
    case SubScales::kSixBitPairs:
    case SubScales::kSixBitScales:
      return 12;
    case SubScales::kSixBitRuns:
      return 6;
  }
  return 0;
}

constexpr StretchLayout StretchLayoutOf(WeightType type) {
  const QuantLayout block = QuantLayoutOf(type);
  const bool long_block = block.values == 256;
  StretchLayout out;
  out.runs = long_block ? 8 : 2;
  const std::int64_t half_bytes = kPanelRows * (long_block ? 2 : 4);
  out.mins_at = half_bytes;
  out.sub_scales_at = out.mins_at + (block.min_at < 0 ? 0 : half_bytes);
  out.runs_at = out.sub_scales_at + SubScaleBytes(block.sub_scales) * kPanelRows;
  out.pairs_at = kGroupBytes * (block.nibbles ? 4 : block.pairs ? 0 : 8);
  out.bits_at = out.pairs_at + kGroupBytes * (block.pairs ? 2 : 0);
  out.run_bytes = out.bits_at + kGroupBytes * (block.bits ? 1 : 0);
  out.bytes = out.runs_at + out.runs * out.run_bytes;
  return out;
}

std::int64_t PanelBytes(WeightType type, std::int64_t column_count);
std::int64_t PackedBytes(WeightType type, std::int64_t row_count, std::int64_t column_count);

// Packs panel `panel` of the row-major matrix at `rows` (as GGUF stores it) to `to`, which holds a
// panel.
void PackPanel(WeightType type, const std::byte* rows, std::int64_t row_count,
               std::int64_t column_count, std::int64_t panel, std::byte* to);

}  // namespace cairn::compute
