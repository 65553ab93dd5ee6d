#include "compute-node/kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "compute-node/kernels/quant_block.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kGroupBytes = kPanelRows * 4;

std::int64_t RoundUp(std::int64_t bytes) {
  return (bytes + kPanelAlignBytes - 1) / kPanelAlignBytes * kPanelAlignBytes;
}

void PackFloatRow(std::int64_t value_bytes, const std::byte* from, std::int64_t column_count,
                  std::int64_t row, std::byte* to) {
  for (std::int64_t k = 0; k < column_count; ++k) {
    std::memcpy(to + (k * kPanelRows + row) * value_bytes, from + k * value_bytes,
                static_cast<std::size_t>(value_bytes));
  }
}

// The groups of four columns of a row, among those of the panel's other rows.
void OrGroup(std::byte* to, std::uint32_t four) {
  std::uint32_t word;
  std::memcpy(&word, to, sizeof(word));
  word |= four;
  std::memcpy(to, &word, sizeof(word));
}

// One run of a row. `block` is the block that holds it and `first` its first column there; `to`
// points to the row in the panel's first group.
template <WeightType kType>
void PackRun(const std::byte* block, int first, std::int64_t run, const PanelLayout& layout,
             std::byte* to) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  if constexpr (kType == WeightType::kQ80) {
    for (std::int64_t g = 0; g < 8; ++g) {
      std::memcpy(to + (run * 8 + g) * kGroupBytes, block + 2 + g * 4, 4);
    }
  } else {
    for (int g = 0; g < 8; ++g) {
      std::uint32_t numbers = FourNumbers<kType>(block, first + g * 4);
      if constexpr (kLayout.nibbles) {
        OrGroup(to + (run * 4 + g % 4) * kGroupBytes, (numbers & 0x0f0f0f0fU) << (g / 4 * 4));
        numbers >>= 4;
      }
      if constexpr (kLayout.pairs) {
        OrGroup(to + layout.pairs + (run * 2 + g % 2) * kGroupBytes, (numbers & 0x03030303U)
                                                                         << (g / 2 * 2));
        numbers >>= 2;
      }
      if constexpr (kLayout.bits) {
        OrGroup(to + layout.bits + run * kGroupBytes, (numbers & 0x01010101U) << g);
      }
    }
  }
}

// The sub-scales of one run of a row; `to` points to the row in the first 16 of them.
template <WeightType kType>
void PackSubScales(const std::byte* block, int first, std::int64_t run, std::byte* to) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  if constexpr (kLayout.sub_scales == SubScales::kSigned ||
                kLayout.sub_scales == SubScales::kNibbles) {
    const std::byte* from = block + kLayout.sub_scales_at + first / kGroupValues;
    to[run * 2 * kPanelRows] = from[0];
    to[(run * 2 + 1) * kPanelRows] = from[1];
  } else if constexpr (kLayout.sub_scales != SubScales::kNone) {
    const SixBits numbers = SixBitsOf(kType, block, first / 32);
    to += run / 8 * kSixBitBytes;
    to[run % 8 * kPanelRows] =
        static_cast<std::byte>((numbers.first & 15) | (numbers.second & 15) << 4);
    to[(8 + run % 8 / 2) * kPanelRows] |=
        static_cast<std::byte>((numbers.first >> 4 | numbers.second >> 4 << 2) << (run % 2 * 4));
  }
}

template <WeightType kType>
void PackQuantRow(const std::byte* from, std::int64_t run_count, std::int64_t row,
                  const PanelLayout& layout, std::byte* to) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr int kRuns = kLayout.values / 32;
  for (std::int64_t run = 0; run < run_count; ++run) {
    const std::int64_t index = run / kRuns;
    const std::byte* block = from + index * kLayout.bytes;
    const auto first = static_cast<int>(run % kRuns * 32);
    PackRun<kType>(block, first, run, layout, to + row * 4);
    PackSubScales<kType>(block, first, run, to + layout.sub_scales + row);
    if (first > 0) continue;
    const std::int64_t at = (index * kPanelRows + row) * 2;
    std::memcpy(to + layout.scales + at, block + kLayout.scale_at, 2);
    if constexpr (kLayout.min_at >= 0) {
      std::memcpy(to + layout.mins + at, block + kLayout.min_at, 2);
    }
  }
}

// Bytes of the sub-scales of all rows for one run.
std::int64_t SubScaleBytes(SubScales form) {
  switch (form) {
    case SubScales::kNone:
      return 0;
    case SubScales::kSigned:
    case SubScales::kNibbles:
      return 2 * kPanelRows;
    case SubScales::kSixBitPairs:
    case SubScales::kSixBitScales:
      return kSixBitBytes / 8;
  }
  return 0;
}

}  // namespace

PanelLayout LayoutOfPanel(WeightType type, std::int64_t column_count) {
  PanelLayout layout = {};
  if (!IsQuantised(type)) {
    layout.panel_bytes = RoundUp(kPanelRows * WeightRowBytes(type, column_count));
    return layout;
  }
  const QuantLayout block = QuantLayoutOf(type);
  const std::int64_t run_count = column_count / 32;
  const std::int64_t block_count = column_count / block.values;
  const bool bytes = !block.nibbles && !block.pairs;
  layout.pairs = run_count * kGroupBytes * (bytes ? 8 : block.nibbles ? 4 : 0);
  layout.bits = layout.pairs + run_count * kGroupBytes * (block.pairs ? 2 : 0);
  layout.sub_scales = layout.bits + run_count * kGroupBytes * (block.bits ? 1 : 0);
  layout.scales = layout.sub_scales + run_count * SubScaleBytes(block.sub_scales);
  layout.mins = layout.scales + block_count * kPanelRows * 2;
  layout.panel_bytes = RoundUp(layout.mins + block_count * kPanelRows * (block.min_at < 0 ? 0 : 2));
  return layout;
}

std::int64_t PackedBytes(WeightType type, std::int64_t row_count, std::int64_t column_count) {
  return (row_count + kPanelRows - 1) / kPanelRows * LayoutOfPanel(type, column_count).panel_bytes;
}

void PackPanel(WeightType type, const std::byte* rows, std::int64_t row_count,
               std::int64_t column_count, std::int64_t panel, std::byte* to) {
  const PanelLayout layout = LayoutOfPanel(type, column_count);
  const std::int64_t row_bytes = WeightRowBytes(type, column_count);
  const std::int64_t first_row = panel * kPanelRows;
  const std::int64_t panel_row_count = std::min(kPanelRows, row_count - first_row);
  std::memset(to, 0, static_cast<std::size_t>(layout.panel_bytes));
  for (std::int64_t row = 0; row < panel_row_count; ++row) {
    const std::byte* from = rows + (first_row + row) * row_bytes;
    if (!IsQuantised(type)) {
      PackFloatRow(type == WeightType::kF32 ? 4 : 2, from, column_count, row, to);
      continue;
    }
    ForQuantType(type, [&]<WeightType kType>() {
      PackQuantRow<kType>(from, column_count / 32, row, layout, to);
    });
  }
}

}  // namespace cairn::compute
