#include "compute-node/kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

namespace cairn::compute {
namespace {

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
// points to the row in the run's first group.
template <WeightType kType>
void PackRun(const std::byte* block, int first, std::byte* to) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr StretchLayout kStretch = StretchLayoutOf(kType);
  if constexpr (kType == WeightType::kQ80) {
    for (std::int64_t g = 0; g < 8; ++g) {
      std::memcpy(to + g * kGroupBytes, block + 2 + g * 4, 4);
    }
  } else {
    for (std::int64_t g = 0; g < 8; ++g) {
      std::uint32_t numbers = FourNumbers<kType>(block, first + static_cast<int>(g) * 4);
      if constexpr (kLayout.nibbles) {
        OrGroup(to + g % 4 * kGroupBytes, (numbers & 0x0f0f0f0fU) << (g / 4 * 4));
        numbers >>= 4;
      }
      if constexpr (kLayout.pairs) {
        const std::uint32_t pairs = (numbers & 0x03030303U) << (g / 2 * 2);
        OrGroup(to + kStretch.pairs_at + g % 2 * kGroupBytes, pairs);
        numbers >>= 2;
      }
      if constexpr (kLayout.bits) {
        OrGroup(to + kStretch.bits_at, (numbers & 0x01010101U) << g);
      }
    }
  }
}

// The sub-scales of run `run` of a block; `to` points to the row in the first 16 of them.
template <WeightType kType>
void PackSubScales(const std::byte* block, std::int64_t run, std::byte* to) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  if constexpr (kLayout.sub_scales == SubScales::kSigned ||
                kLayout.sub_scales == SubScales::kNibbles) {
    const std::byte* from = block + kLayout.sub_scales_at + run * 2;
    to[run * 2 * kPanelRows] = from[0];
    to[(run * 2 + 1) * kPanelRows] = from[1];
  } else if constexpr (kLayout.sub_scales == SubScales::kSixBitRuns) {
    const std::byte* from = block + kLayout.sub_scales_at;
    to[run / 4 * kPanelRows] = from[run / 4];
    to[(2 + run / 2) * kPanelRows] = from[2 + run / 2];
  } else if constexpr (kLayout.sub_scales != SubScales::kNone) {
    const SixBits numbers = SixBitsOf(kType, block, static_cast<int>(run));
    to[run * kPanelRows] =
        static_cast<std::byte>((numbers.first & 15) | (numbers.second & 15) << 4);
    to[(8 + run / 2) * kPanelRows] |=
        static_cast<std::byte>((numbers.first >> 4 | numbers.second >> 4 << 2) << (run % 2 * 4));
  }
}

template <WeightType kType>
void PackQuantRow(const std::byte* from, std::int64_t block_count, std::int64_t row,
                  std::byte* panel) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr StretchLayout kStretch = StretchLayoutOf(kType);
  constexpr std::int64_t kBlockRuns = kLayout.values / 32;
  constexpr std::int64_t kBlocks = kStretch.runs / kBlockRuns;
  for (std::int64_t b = 0; b < block_count; ++b, from += kLayout.bytes) {
    std::byte* stretch = panel + b / kBlocks * kStretch.bytes;
    const std::int64_t index = b % kBlocks;
    std::byte* half = stretch + (index * kPanelRows + row) * 2;
    std::memcpy(half, from + kLayout.scale_at, 2);
    if constexpr (kLayout.min_at >= 0) {
      std::memcpy(half + kStretch.mins_at, from + kLayout.min_at, 2);
    }
    std::byte* run_at = stretch + kStretch.runs_at + index * kStretch.run_bytes + row * 4;
    for (std::int64_t run = 0; run < kBlockRuns; ++run) {
      PackRun<kType>(from, static_cast<int>(run) * 32, run_at + run * kStretch.run_bytes);
      PackSubScales<kType>(from, run, stretch + kStretch.sub_scales_at + row);
    }
  }
}

}  // namespace

std::int64_t PanelBytes(WeightType type, std::int64_t column_count) {
  if (!IsQuantised(type)) return RoundUp(kPanelRows * WeightRowBytes(type, column_count));
  const StretchLayout stretch = StretchLayoutOf(type);
  const std::int64_t columns = stretch.runs * 32;
  return RoundUp((column_count + columns - 1) / columns * stretch.bytes);
}

std::int64_t PackedBytes(WeightType type, std::int64_t row_count, std::int64_t column_count) {
  return (row_count + kPanelRows - 1) / kPanelRows * PanelBytes(type, column_count);
}

void PackPanel(WeightType type, const std::byte* rows, std::int64_t row_count,
               std::int64_t column_count, std::int64_t panel, std::byte* to) {
  const std::int64_t row_bytes = WeightRowBytes(type, column_count);
  const std::int64_t first_row = panel * kPanelRows;
  const std::int64_t panel_row_count = std::min(kPanelRows, row_count - first_row);
  std::memset(to, 0, static_cast<std::size_t>(PanelBytes(type, column_count)));
  for (std::int64_t row = 0; row < panel_row_count; ++row) {
    const std::byte* from = rows + (first_row + row) * row_bytes;
    if (!IsQuantised(type)) {
      PackFloatRow(type == WeightType::kF32 ? 4 : 2, from, column_count, row, to);
      continue;
    }
    ForQuantType(type, [&]<WeightType kType>() {
      PackQuantRow<kType>(from, column_count / QuantLayoutOf(kType).values, row, to);
    });
  }
}

}  // namespace cairn::compute
