// ForeseenQueries are the sums of queries that a layer was foreseen to have, by which a policy that
// selects ahead chose what the layer attends. Most are near what the queries turn out to be. Where
// the layer before does something of its own with a token they are not, and what the head then
// looks for would be missing: such a head selects by its queries after all.
//
// Shapes:    sums[KV head][head_dim], retrieval/fetch_plan.h.
// Threading: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// The least cosine between the sum of a KV head's queries and the one that was foreseen.
inline constexpr double kForeseenCosineMin = 0.9;

class ForeseenQueries {
 public:
  // REQUIRES: head_count >= 1, the KV heads; head_dim >= 1.
  ForeseenQueries(std::int64_t head_count, std::int64_t head_dim);

  // REQUIRES: a sum for each head.
  void Set(std::span<const float> sums);
  // Puts the sums of `queries`, [query head][head_dim], in the place of those foreseen that are not
  // near them, and answers whether there were such. REQUIRES: sums were set.
  bool Correct(std::span<const float> queries);
  std::span<const float> sums() const { return sums_; }

 private:
  const std::int64_t head_count_;
  const std::int64_t head_dim_;
  std::vector<float> sums_;
};

}  // namespace cairn::compute
