// ForeseenQueries are the queries that a layer was foreseen to have, by which a policy that selects
// ahead chose what the layer attends. Most are near what the queries turn out to be. Where the
// layer before does something of its own with a token they are not, and what the head then looks
// for would be missing: such a head selects by its queries after all.
//
// Shapes:    queries[query head][head_dim]; the group_size query heads of a KV head lie one behind
//            the other.
// Threading: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// The least cosine between the sum of a KV head's queries, by which policies score, and that of
// those foreseen.
inline constexpr double kForeseenCosineMin = 0.9;

class ForeseenQueries {
 public:
  // REQUIRES: head_dim >= 1, group_size >= 1.
  ForeseenQueries(std::int64_t head_dim, std::int64_t group_size);

  void Set(std::span<const float> queries) { queries_.assign(queries.begin(), queries.end()); }
  // Puts the queries of KV heads in the place of those foreseen that are not near them, and answers
  // whether there were such. REQUIRES: as many as were set.
  bool Correct(std::span<const float> queries);
  std::span<const float> queries() const { return queries_; }

 private:
  bool IsNear(std::span<const float> foreseen, std::span<const float> queries) const;

  const std::size_t head_dim_;
  const std::size_t group_size_;
  std::vector<float> queries_;
};

}  // namespace cairn::compute
