#include "compute-node/model/forward/finite_check.h"

namespace cairn::compute {

void FiniteCheck::CheckRows(std::int64_t first_row, std::int64_t row_count) {
  for (std::int64_t row = first_row; row < first_row + row_count; ++row) {
    if (FirstNotFinite(type_, RowAt(row), tensor_.row_length()) < 0) continue;
    std::int64_t known = bad_row_.load(std::memory_order_relaxed);
    while (row < known && !bad_row_.compare_exchange_weak(known, row)) {
    }
    return;
  }
}

absl::Status FiniteCheck::status() const {
  const std::int64_t row = bad_row_.load();
  if (row == kNoRow) return absl::OkStatus();
  const std::int64_t column = FirstNotFinite(type_, RowAt(row), tensor_.row_length());
  return InvalidArgument(
      "tensor '{}': value {} (row {}, column {}{}) is NaN or infinite; the file is damaged or was "
      "converted wrongly: get it again",
      PrintableText(tensor_.name), row * tensor_.row_length() + column, row, column,
      IsQuantised(type_) ? fmt::format(", with its block of {} values", WeightBlockValues(type_))
                         : "");
}

}  // namespace cairn::compute
