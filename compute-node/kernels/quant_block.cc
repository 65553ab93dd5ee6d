#include "compute-node/kernels/quant_block.h"

namespace cairn::compute {
namespace {

int ByteAt(const std::byte* block, int at) { return std::to_integer<int>(block[at]); }

}  // namespace

SixBits SixBitsOf(WeightType type, const std::byte* block, int run) {
  const QuantLayout layout = QuantLayoutOf(type);
  const std::byte* packed = block + layout.sub_scales_at;
  if (layout.sub_scales == SubScales::kSixBitScales) {
    // Numbers 0 to 7 have their low four bits in the low halves of the first eight bytes, 8 to 15
    // in the high halves; the last four bytes hold the other two bits, of every fourth number each.
    const auto number = [packed](int group) {
      const int low = ByteAt(packed, group % 8) >> (group / 8 * 4) & 15;
      return low | (ByteAt(packed, 8 + group % 4) >> (group / 4 * 2) & 3) << 4;
    };
    return {number(run * 2), number(run * 2 + 1)};
  }
  CAIRN_CHECK(layout.sub_scales == SubScales::kSixBitPairs);
  // Four scales, then four minimums; the later four of each have their low four bits in the last
  // four bytes, and the other two above the first eight numbers.
  if (run < 4) return {ByteAt(packed, run) & 63, ByteAt(packed, run + 4) & 63};
  return {(ByteAt(packed, run + 4) & 15) | ByteAt(packed, run - 4) >> 6 << 4,
          ByteAt(packed, run + 4) >> 4 | ByteAt(packed, run) >> 6 << 4};
}

int RunMultiplierOf(WeightType type, const std::byte* block, int run) {
  const QuantLayout layout = QuantLayoutOf(type);
  CAIRN_CHECK(layout.sub_scales == SubScales::kSixBitRuns);
  const int high = ByteAt(block, layout.sub_scales_at + run / 4) >> (run % 4 * 2) & 3;
  const int low = ByteAt(block, layout.sub_scales_at + 2 + run / 2) >> (run % 2 * 4) & 15;
  return (low | high << 4) - 32;
}

GroupScale GroupScaleOf(WeightType type, const std::byte* block, int index) {
  const QuantLayout layout = QuantLayoutOf(type);
  const float scale = LoadF16(block + layout.scale_at);
  const float min = layout.min_at < 0 ? 0 : LoadF16(block + layout.min_at);
  const int group = index / kGroupValues;
  switch (layout.sub_scales) {
    case SubScales::kNone:
      return {scale, min};
    case SubScales::kSigned: {
      const auto number = std::to_integer<std::int8_t>(block[layout.sub_scales_at + group]);
      return {scale * static_cast<float>(number), 0};
    }
    case SubScales::kNibbles: {
      const int both = ByteAt(block, layout.sub_scales_at + group);
      return {scale * static_cast<float>(both & 15), -min * static_cast<float>(both >> 4)};
    }
    case SubScales::kSixBitPairs: {
      const SixBits numbers = SixBitsOf(type, block, group / 2);
      return {scale * static_cast<float>(numbers.first), -min * static_cast<float>(numbers.second)};
    }
    case SubScales::kSixBitRuns:
      return {scale * static_cast<float>(RunMultiplierOf(type, block, group / 2)), 0};
    case SubScales::kSixBitScales: {
      const SixBits numbers = SixBitsOf(type, block, group / 2);
      const int number = group % 2 == 0 ? numbers.first : numbers.second;
      return {scale * static_cast<float>(number - 32), 0};
    }
  }
  CAIRN_CHECK(false);
  return {};
}

}  // namespace cairn::compute
