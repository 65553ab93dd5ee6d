#include "compute-node/model/forward/query_sums.h"

#include <algorithm>

#include "common/base/check.h"
#include "compute-node/kernels/convert.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kernels/packed_matrix.h"

namespace cairn::compute {
namespace {

constexpr float kF16Max = 65504.0F;

// Of the row of the first of the group's heads that goes into the sum.
std::int64_t FirstRowOf(const QuerySumShape& shape, std::int64_t sum_row) {
  return sum_row / shape.head_dim * shape.group_size * shape.head_dim + sum_row % shape.head_dim;
}

void EncodeRow(WeightType type, std::span<float> row, std::byte* to) {
  for (float& x : row) x = std::clamp(x, -kF16Max, kF16Max);
  if (type == WeightType::kF16) return StoreF16Row(row, to);
  CAIRN_CHECK(type == WeightType::kQ80);
  const auto block = static_cast<std::size_t>(WeightBlockValues(type));
  for (std::size_t first = 0; first < row.size(); first += block) {
    StoreQ8Row(row.subspan(first, block), to);
    to += WeightRowBytes(type, static_cast<std::int64_t>(block));
  }
}

}  // namespace

WeightType QuerySumType(WeightType type) {
  return IsQuantised(type) ? WeightType::kQ80 : WeightType::kF16;
}

void PackQuerySums(WeightType type, const std::byte* rows, const QuerySumShape& shape,
                   std::int64_t sum_row_count, std::int64_t column_count, std::int64_t panel,
                   std::byte* to) {
  const WeightType sum_type = QuerySumType(type);
  const std::int64_t row_bytes = WeightRowBytes(type, column_count);
  const std::int64_t sum_bytes = WeightRowBytes(sum_type, column_count);
  const std::int64_t first = panel * kPanelRows;
  const std::int64_t count = std::min(kPanelRows, sum_row_count - first);
  std::vector<std::byte> sums(static_cast<std::size_t>(count * sum_bytes));
  std::vector<float> sum(static_cast<std::size_t>(column_count));
  std::vector<float> row(sum.size());
  for (std::int64_t i = 0; i < count; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::int64_t member = 0; member < shape.group_size; ++member) {
      const std::int64_t at = FirstRowOf(shape, first + i) + member * shape.head_dim;
      DequantizeRow(type, rows + at * row_bytes, row);
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += row[j];
    }
    EncodeRow(sum_type, sum, sums.data() + i * sum_bytes);
  }
  PackPanel(sum_type, sums.data(), count, column_count, 0, to);
}

std::vector<float> SumQueryBias(std::span<const float> bias, const QuerySumShape& shape) {
  const std::int64_t group_numbers = shape.group_size * shape.head_dim;
  CAIRN_CHECK_EQ(std::ssize(bias) % group_numbers, 0);
  std::vector<float> sums(bias.size() / static_cast<std::size_t>(shape.group_size), 0.0F);
  for (std::int64_t row = 0; row < std::ssize(sums); ++row) {
    for (std::int64_t member = 0; member < shape.group_size; ++member) {
      const std::int64_t at = FirstRowOf(shape, row) + member * shape.head_dim;
      sums[static_cast<std::size_t>(row)] += bias[static_cast<std::size_t>(at)];
    }
  }
  return sums;
}

}  // namespace cairn::compute
