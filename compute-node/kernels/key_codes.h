// Key codes: projected keys in a few bits a number, and the products of queries with them. What
// ranks the groups of the policy kvswap (retrieval/kvswap/small_keys.h).
//
// Layout:      16 rows are a panel, of runs of 32 axes, as packed_matrix.h has weights: its kernels
//              read them. In 8 bits a code is signed, in fewer it is not.
// Determinism: a score depends only on the numbers of its own query and row. Instruction sets may
//              differ in the last bits.
// Threading:   functions of their arguments only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::compute {

inline constexpr std::int64_t kCodePanelRows = 16;
inline constexpr std::int64_t kCodeRunAxes = 32;

inline constexpr std::size_t kCodeRunsMax = 32;

// How many bits the codes of each run have: 1, 2, 3, 4 or 8; the runs that are not there have 0.
struct KeyCodeShape {
  std::array<std::uint8_t, kCodeRunsMax> run_bits{};

  // `run_count` runs of as many bits each.
  static KeyCodeShape Even(std::int64_t run_count, int bits);
  // The bits of one run after another, as "2211"; nullopt for what is no valid shape.
  static std::optional<KeyCodeShape> Parse(std::string_view digits);
  std::string ToString() const;

  bool IsValid() const;
  std::int64_t run_count() const;
  std::int64_t axis_count() const { return run_count() * kCodeRunAxes; }
  std::int64_t RowBytes() const;
  std::int64_t PanelBytes() const { return RowBytes() * kCodePanelRows; }
  int BitsOf(std::int64_t axis) const {
    return run_bits[static_cast<std::size_t>(axis / kCodeRunAxes)];
  }
  // Codes of an axis are 0 to this.
  int CodeMaxOf(std::int64_t axis) const { return (1 << BitsOf(axis)) - 1; }
  friend bool operator==(const KeyCodeShape&, const KeyCodeShape&) = default;
};

// Puts a row's codes into a panel, over what was there; and the reverse. REQUIRES: a valid shape, a
// code for each axis, none above CodeMaxOf it; 0 <= row < kCodePanelRows.
void PutKeyCodes(const KeyCodeShape& shape, std::span<const std::uint8_t> codes, std::int64_t row,
                 std::byte* panel);
void GetKeyCodes(const KeyCodeShape& shape, const std::byte* panel, std::int64_t row,
                 std::span<std::uint8_t> codes);

// A query in 8 bits for each axis, with one scale for each run.
class CodedQuery {
 public:
  // REQUIRES: a valid shape, a number for each axis.
  CodedQuery(const KeyCodeShape& shape, std::span<const float> numbers);

  const std::int8_t* digits() const { return digits_.data(); }
  const float* scales() const { return scales_.data(); }
  // The score of a row whose codes are all in the middle.
  float middle() const { return middle_; }

 private:
  std::vector<std::int8_t> digits_;
  std::vector<float> scales_;
  float middle_ = 0;
};

// scores[q][row] = query q . (codes of the row - half of CodeMaxOf each), for all rows of the
// panels. REQUIRES: as many rows of scores as queries, each of panel_count * kCodePanelRows.
void ScoreKeyCodes(const KeyCodeShape& shape, std::span<const CodedQuery> queries,
                   const std::byte* panels, std::int64_t panel_count,
                   std::span<float* const> scores);

// Adds what rows of numbers have of each axis: sums[row][axis] += numbers[row][i] * axes[i][axis],
// in the order of i, so that a row's sums do not depend on the others. REQUIRES: `axes` are
// (dimension_count, axis_count), a multiple of kCodeRunAxes; `numbers` (row, dimension_count) and
// `sums` (row, axis_count) have as many rows.
void AddProjections(std::span<const float> numbers, std::int64_t dimension_count,
                    std::span<const std::int8_t> axes, std::int64_t axis_count,
                    std::span<float> sums);

// Adds to `masses` the softmax of `scores` times `scale`, which it overwrites. One that is not
// finite adds nothing. REQUIRES: as many masses as scores.
void AddSoftmaxOf(std::span<float> scores, float scale, std::span<float> masses);

}  // namespace cairn::compute
