#include "compute-node/kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

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

// A row of Q8_0 or Q4_0: blocks of a scale and `kGroupCount` groups of four bytes. A Q4_0 file
// already pairs value j with value j + 16 in a byte, which is what the panel wants.
template <int kGroupCount>
void PackBlocks(const std::byte* from, std::int64_t block_count, std::int64_t row,
                const PanelLayout& layout, std::byte* to) {
  for (std::int64_t b = 0; b < block_count; ++b, from += 2 + kGroupCount * 4) {
    std::memcpy(to + layout.scales + (b * kPanelRows + row) * 2, from, 2);
    for (std::int64_t g = 0; g < kGroupCount; ++g) {
      std::memcpy(to + (b * kGroupCount + g) * kGroupBytes + row * 4, from + 2 + g * 4, 4);
    }
  }
}

// One block of 32 columns of a Q6_K row. `block` is the 256-value block, `first` the first of the
// 32 columns in it.
void PackQ6Columns(const std::byte* block, int first, std::byte* low, std::byte* high) {
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < 4; ++j) {
      const int value = Q6Value(block, first + g * 4 + j);
      std::byte& low_byte = low[g % 4 * kGroupBytes + j];
      std::byte& high_byte = high[g % 2 * kGroupBytes + j];
      low_byte |= static_cast<std::byte>((value & 15) << (g / 4 * 4));
      high_byte |= static_cast<std::byte>((value >> 4) << (g / 2 * 2));
    }
  }
}

void PackQ6Row(const std::byte* from, std::int64_t block_count, std::int64_t row,
               const PanelLayout& layout, std::byte* to) {
  for (std::int64_t b = 0; b < block_count; ++b) {
    const std::byte* block = from + b / 8 * 210;
    const auto first = static_cast<int>(b % 8 * 32);
    PackQ6Columns(block, first, to + b * 4 * kGroupBytes + row * 4,
                  to + layout.high_bits + b * 2 * kGroupBytes + row * 4);
    std::byte* sub_scales = to + layout.sub_scales + b * 2 * kPanelRows + row;
    sub_scales[0] = block[192 + first / 16];
    sub_scales[kPanelRows] = block[192 + first / 16 + 1];
    std::memcpy(to + layout.scales + (b / 8 * kPanelRows + row) * 2, block + 208, 2);
  }
}

}  // namespace

PanelLayout LayoutOfPanel(WeightType type, std::int64_t column_count) {
  PanelLayout layout = {};
  const std::int64_t block_count = column_count / 32;
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      layout.panel_bytes = RoundUp(kPanelRows * WeightRowBytes(type, column_count));
      return layout;
    case WeightType::kQ80:
      layout.scales = block_count * 8 * kGroupBytes;
      break;
    case WeightType::kQ40:
      layout.scales = block_count * 4 * kGroupBytes;
      break;
    case WeightType::kQ6K:
      layout.high_bits = block_count * 4 * kGroupBytes;
      layout.sub_scales = layout.high_bits + block_count * 2 * kGroupBytes;
      layout.scales = layout.sub_scales + block_count * 2 * kPanelRows;
      layout.panel_bytes = RoundUp(layout.scales + block_count / 8 * kPanelRows * 2);
      return layout;
  }
  layout.panel_bytes = RoundUp(layout.scales + block_count * kPanelRows * 2);
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
    switch (type) {
      case WeightType::kF32:
        PackFloatRow(4, from, column_count, row, to);
        break;
      case WeightType::kF16:
      case WeightType::kBF16:
        PackFloatRow(2, from, column_count, row, to);
        break;
      case WeightType::kQ80:
        PackBlocks<8>(from, column_count / 32, row, layout, to);
        break;
      case WeightType::kQ40:
        PackBlocks<4>(from, column_count / 32, row, layout, to);
        break;
      case WeightType::kQ6K:
        PackQ6Row(from, column_count / 32, row, layout, to);
        break;
    }
  }
}

}  // namespace cairn::compute
