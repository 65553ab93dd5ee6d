// QueryMetric makes the distance between keys of one (layer, KV head) count what queries see of it.
//
// A cluster is selected by the product of a query and its centroid c, which errs for its key k by
// q.(k - c). The mean square of that over queries is (k - c)^T M (k - c), where M is the second
// moment of queries. Keys are therefore stretched by a factor L of M = L L^T (L^T k), and queries
// by its inverse: their product is what it was, and the plain distance between keys is now the
// error that counts. What works on stretched keys, K-means and index, thresholds and splits, needs
// to know nothing of it.
//
// Only the 2x2 blocks of M are used of the dimensions that rotary embedding turns together: what
// other blocks have depends on the positions at which it was learned. A share of the identity,
// kIdentityShare, keeps directions in which the sample had no queries.
//
// Threading:    one thread; const members any.
// Determinism:  what is learned depends on the queries alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/kernels/ops.h"

namespace cairn::compute {

class QueryMetric {
 public:
  static constexpr double kIdentityShare = 0.2;

  // Keeps keys and queries as they are until it has learned or was restored. Of an odd `dim` the
  // last dimension stays as it is.
  QueryMetric(std::int64_t dim, RotaryPairs pairs);

  bool has_learned() const { return has_learned_; }
  // `queries` are rows of `dim`. Stays as it is when they are all zero or not finite.
  void Learn(std::span<const float> queries);

  // In place; rows of `dim`.
  void StretchKeys(std::span<float> keys) const;
  void StretchQuery(std::span<float> query) const;
  // The reverse of StretchKeys, up to rounding, of keys by element: element i of all is at
  // [i * key_count, (i + 1) * key_count).
  void UnstretchColumns(std::span<float> columns, std::int64_t key_count) const;

  // What it has learned, 3 numbers a pair, and the reverse: false if they are none.
  std::span<const float> numbers() const { return factors_; }
  std::int64_t number_count() const { return 3 * pair_count(); }
  bool Restore(bool has_learned, std::span<const float> numbers);

 private:
  std::int64_t pair_count() const { return dim_ / 2; }
  std::size_t FirstOf(std::int64_t pair) const {
    return static_cast<std::size_t>(pairs_ == RotaryPairs::kAdjacent ? 2 * pair : pair);
  }
  std::size_t SecondOf(std::int64_t pair) const {
    return static_cast<std::size_t>(pairs_ == RotaryPairs::kAdjacent ? 2 * pair + 1
                                                                     : pair + pair_count());
  }

  std::int64_t dim_;
  RotaryPairs pairs_;
  bool has_learned_ = false;
  // Of each pair L's elements (0, 0), (1, 0) and (1, 1).
  std::vector<float> factors_;
};

}  // namespace cairn::compute
