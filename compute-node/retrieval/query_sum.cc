#include "compute-node/retrieval/query_sum.h"

#include "common/base/check.h"

namespace cairn::compute {

std::vector<float> QuerySum(std::span<const float> queries, std::int64_t head_count,
                            std::int64_t head_dim, std::int32_t head) {
  CAIRN_CHECK(head >= 0 && head < head_count);
  CAIRN_CHECK(!queries.empty() && std::ssize(queries) % (head_count * head_dim) == 0);
  const std::size_t width = static_cast<std::size_t>(head_dim);
  const std::size_t floats = queries.size() / static_cast<std::size_t>(head_count);
  const std::size_t first = static_cast<std::size_t>(head) * floats;
  std::vector<float> sum(width, 0.0F);
  for (std::size_t i = 0; i < floats; ++i) sum[i % width] += queries[first + i];
  return sum;
}

}  // namespace cairn::compute
