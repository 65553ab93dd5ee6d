#include "compute-node/session/attention/foreseen_queries.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {
namespace {

bool IsNear(std::span<const float> foreseen, std::span<const float> sum) {
  double product = 0;
  double foreseen_square = 0;
  double square = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    product += static_cast<double>(foreseen[i]) * static_cast<double>(sum[i]);
    foreseen_square += static_cast<double>(foreseen[i]) * static_cast<double>(foreseen[i]);
    square += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
  }
  return product >= kForeseenCosineMin * std::sqrt(foreseen_square * square);
}

}  // namespace

ForeseenQueries::ForeseenQueries(std::int64_t head_count, std::int64_t head_dim)
    : head_count_(head_count), head_dim_(head_dim) {
  CAIRN_CHECK_GE(head_count, 1);
  CAIRN_CHECK_GE(head_dim, 1);
}

void ForeseenQueries::Set(std::span<const float> sums) {
  CAIRN_CHECK_EQ(std::ssize(sums), head_count_ * head_dim_);
  sums_.assign(sums.begin(), sums.end());
}

bool ForeseenQueries::Correct(std::span<const float> queries) {
  CAIRN_CHECK_EQ(std::ssize(sums_), head_count_ * head_dim_);
  const std::size_t width = static_cast<std::size_t>(head_dim_);
  bool corrected = false;
  for (std::int32_t head = 0; head < head_count_; ++head) {
    const std::vector<float> sum = QuerySum(queries, head_count_, head_dim_, head);
    const std::span<float> foreseen =
        std::span(sums_).subspan(static_cast<std::size_t>(head) * width, width);
    if (IsNear(foreseen, sum)) continue;
    std::copy(sum.begin(), sum.end(), foreseen.begin());
    corrected = true;
  }
  return corrected;
}

}  // namespace cairn::compute
