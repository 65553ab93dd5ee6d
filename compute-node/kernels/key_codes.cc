#include "compute-node/kernels/key_codes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/key_codes.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "compute-node/kernels/key_codes-inl.h"

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(ScorePanels);
HWY_EXPORT(CodeOffset);
HWY_EXPORT(AddSoftmaxRow);
HWY_EXPORT(ProjectRows);

namespace {

constexpr std::int64_t kPlaneBytes = 4 * kCodePanelRows;  // four axes of all rows
constexpr int kSignedZero = 128;                          // of codes of 8 bits

// Where some bits of a code are.
struct BitPlace {
  std::int64_t byte = 0;  // of the run
  int shift = 0;          // in the byte
  int first_bit = 0;      // of the code
  int bit_count = 0;
};

struct BitPlaces {
  BitPlace places[2];
  int count = 0;
};

// As LoadKeyCodes takes them out. Axes of a run are two halves of four groups of four.
BitPlaces PlacesOf(int bits, std::int64_t row, std::int64_t axis) {
  const std::int64_t of_row = 4 * row + axis % 4;
  const std::int64_t group = axis / 4 % 4;
  const int half = static_cast<int>(axis % kCodeRunAxes / (kCodeRunAxes / 2));
  switch (bits) {
    case 8:
      return {{{(std::int64_t{4} * half + group) * kPlaneBytes + of_row, 0, 0, 8}}, 1};
    case 4:
      return {{{group * kPlaneBytes + of_row, 4 * half, 0, 4}}, 1};
    default:
      break;
  }
  const int of_group = static_cast<int>(group);
  if (bits == 1) return {{{of_row, 4 * half + of_group, 0, 1}}, 1};
  return {{{group % 2 * kPlaneBytes + of_row, 4 * half + of_group / 2 * 2, 0, 2},
           {2 * kPlaneBytes + of_row, 4 * half + of_group, 2, 1}},
          bits == 3 ? 2 : 1};
}

// Calls fn(code, byte, place) for all parts of a row's codes.
template <typename Panel, typename Code, typename Fn>
void ForEachPlace(const KeyCodeShape& shape, std::span<Code> codes, std::int64_t row, Panel* panel,
                  const Fn& fn) {
  CAIRN_CHECK(shape.IsValid() && row >= 0 && row < kCodePanelRows);
  CAIRN_CHECK_EQ(std::ssize(codes), shape.axis_count());
  for (std::size_t axis = 0; axis < codes.size(); ++axis) {
    const auto at = static_cast<std::int64_t>(axis);
    const int bits = shape.BitsOf(at);
    const BitPlaces all = PlacesOf(bits, row, at);
    for (int i = 0; i < all.count; ++i) fn(codes[axis], panel[all.places[i].byte], all.places[i]);
    if (at % kCodeRunAxes == kCodeRunAxes - 1) {
      panel += kCodeRunAxes * kCodePanelRows * bits / 8;
    }
  }
}

// Codes of 8 bits lie as signed ones.
std::uint8_t Flip(int bit_count) { return bit_count == 8 ? kSignedZero : 0; }

}  // namespace

KeyCodeShape KeyCodeShape::Even(std::int64_t run_count, int bits) {
  CAIRN_CHECK(run_count >= 0 && run_count <= static_cast<std::int64_t>(kCodeRunsMax));
  KeyCodeShape shape;
  std::fill_n(shape.run_bits.begin(), run_count, static_cast<std::uint8_t>(bits));
  return shape;
}

std::optional<KeyCodeShape> KeyCodeShape::Parse(std::string_view digits) {
  KeyCodeShape shape;
  if (digits.size() > kCodeRunsMax) return std::nullopt;
  for (std::size_t run = 0; run < digits.size(); ++run) {
    shape.run_bits[run] = static_cast<std::uint8_t>(digits[run] - '0');
  }
  if (!shape.IsValid() || shape.run_count() != std::ssize(digits)) return std::nullopt;
  return shape;
}

std::string KeyCodeShape::ToString() const {
  std::string digits;
  for (std::int64_t run = 0; run < run_count(); ++run) {
    digits.push_back(static_cast<char>('0' + run_bits[static_cast<std::size_t>(run)]));
  }
  return digits;
}

bool KeyCodeShape::IsValid() const {
  const auto end = run_bits.begin() + run_count();
  return run_bits[0] != 0 &&
         std::all_of(run_bits.begin(), end,
                     [](int bits) { return (bits >= 1 && bits <= 4) || bits == 8; }) &&
         std::all_of(end, run_bits.end(), [](int bits) { return bits == 0; });
}

std::int64_t KeyCodeShape::run_count() const {
  return std::find(run_bits.begin(), run_bits.end(), 0) - run_bits.begin();
}

std::int64_t KeyCodeShape::RowBytes() const {
  return std::accumulate(run_bits.begin(), run_bits.end(), std::int64_t{0}) * kCodeRunAxes / 8;
}

void PutKeyCodes(const KeyCodeShape& shape, std::span<const std::uint8_t> codes, std::int64_t row,
                 std::byte* panel) {
  ForEachPlace(shape, codes, row, panel,
               [](std::uint8_t code, std::byte& byte, const BitPlace& place) {
                 const unsigned mask = (1U << place.bit_count) - 1;
                 const unsigned part = (code ^ Flip(place.bit_count)) >> place.first_bit & mask;
                 byte = (byte & static_cast<std::byte>(~(mask << place.shift))) |
                        static_cast<std::byte>(part << place.shift);
               });
}

void GetKeyCodes(const KeyCodeShape& shape, const std::byte* panel, std::int64_t row,
                 std::span<std::uint8_t> codes) {
  std::fill(codes.begin(), codes.end(), 0);
  ForEachPlace(
      shape, codes, row, panel, [](std::uint8_t& code, std::byte byte, const BitPlace& place) {
        const unsigned mask = (1U << place.bit_count) - 1;
        const unsigned part = std::to_integer<unsigned>(byte) >> place.shift & mask;
        code = static_cast<std::uint8_t>(code | (part ^ Flip(place.bit_count)) << place.first_bit);
      });
}

CodedQuery::CodedQuery(const KeyCodeShape& shape, std::span<const float> numbers)
    : digits_(static_cast<std::size_t>(shape.axis_count())),
      scales_(static_cast<std::size_t>(shape.run_count())) {
  CAIRN_CHECK(shape.IsValid());
  CAIRN_CHECK_EQ(std::ssize(numbers), shape.axis_count());
  constexpr float kLargestDigit = 127.0F;
  for (std::size_t run = 0; run < scales_.size(); ++run) {
    const std::span<const float> from = numbers.subspan(run * kCodeRunAxes, kCodeRunAxes);
    float largest = 0;
    for (const float number : from) largest = std::max(largest, std::abs(number));
    const float scale = largest / kLargestDigit;
    const bool finite =
        std::all_of(from.begin(), from.end(), [](float number) { return std::isfinite(number); });
    // A run of nothing, or of what is no number, scores nothing.
    if (!(scale > 0) || !finite) continue;
    scales_[run] = scale;
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto digit = static_cast<std::int8_t>(std::lround(from[i] / scale));
      digits_[run * kCodeRunAxes + i] = digit;
      sum += digit;
    }
    const int bits = shape.run_bits[run];
    // Codes of 8 bits are less 128 where they lie, the others as they are.
    const float middle = static_cast<float>((1 << bits) - 1) / 2 - static_cast<float>(Flip(bits));
    const auto offset = static_cast<float>(HWY_DYNAMIC_DISPATCH(CodeOffset)(bits));
    middle_ += scale * (middle + offset) * static_cast<float>(sum);
  }
}

void ScoreKeyCodes(const KeyCodeShape& shape, std::span<const CodedQuery> queries,
                   const std::byte* panels, std::int64_t panel_count,
                   std::span<float* const> scores) {
  CAIRN_CHECK(shape.IsValid());
  CAIRN_CHECK_EQ(queries.size(), scores.size());
  HWY_DYNAMIC_DISPATCH(ScorePanels)(shape, queries, panels, panel_count, scores.data());
}

void AddProjections(std::span<const float> numbers, std::int64_t dimension_count,
                    std::span<const std::int8_t> axes, std::int64_t axis_count,
                    std::span<float> sums) {
  CAIRN_CHECK(dimension_count > 0 && axis_count % kCodeRunAxes == 0);
  CAIRN_CHECK_EQ(std::ssize(axes), dimension_count * axis_count);
  const std::int64_t row_count = std::ssize(numbers) / dimension_count;
  CAIRN_CHECK_EQ(std::ssize(numbers), row_count * dimension_count);
  CAIRN_CHECK_EQ(std::ssize(sums), row_count * axis_count);
  HWY_DYNAMIC_DISPATCH(ProjectRows)
  (numbers.data(), row_count, dimension_count, axes.data(), axis_count, sums.data());
}

void AddSoftmaxOf(std::span<float> scores, float scale, std::span<float> masses) {
  CAIRN_CHECK_EQ(scores.size(), masses.size());
  HWY_DYNAMIC_DISPATCH(AddSoftmaxRow)(scores.data(), std::ssize(scores), scale, masses.data());
}

}  // namespace cairn::compute
#endif
