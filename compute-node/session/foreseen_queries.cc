#include "compute-node/session/foreseen_queries.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace cairn::compute {

ForeseenQueries::ForeseenQueries(std::int64_t head_dim, std::int64_t group_size)
    : head_dim_(static_cast<std::size_t>(head_dim)),
      group_size_(static_cast<std::size_t>(group_size)) {
  CAIRN_CHECK_GE(head_dim, 1);
  CAIRN_CHECK_GE(group_size, 1);
}

bool ForeseenQueries::Correct(std::span<const float> queries) {
  CAIRN_CHECK_EQ(queries.size(), queries_.size());
  const std::size_t group = group_size_ * head_dim_;
  bool corrected = false;
  for (std::size_t first = 0; first < queries.size(); first += group) {
    const std::span<const float> mine = queries.subspan(first, group);
    const std::span<float> foreseen = std::span(queries_).subspan(first, group);
    if (IsNear(foreseen, mine)) continue;
    std::copy(mine.begin(), mine.end(), foreseen.begin());
    corrected = true;
  }
  return corrected;
}

bool ForeseenQueries::IsNear(std::span<const float> foreseen,
                             std::span<const float> queries) const {
  double product = 0;
  double foreseen_square = 0;
  double square = 0;
  for (std::size_t i = 0; i < head_dim_; ++i) {
    double foreseen_sum = 0;
    double sum = 0;
    for (std::size_t query = 0; query < group_size_; ++query) {
      foreseen_sum += static_cast<double>(foreseen[query * head_dim_ + i]);
      sum += static_cast<double>(queries[query * head_dim_ + i]);
    }
    product += foreseen_sum * sum;
    foreseen_square += foreseen_sum * foreseen_sum;
    square += sum * sum;
  }
  return product >= kForeseenCosineMin * std::sqrt(foreseen_square * square);
}

}  // namespace cairn::compute
