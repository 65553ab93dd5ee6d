// Runs of keys that are alike: how many keys of a layer and KV head would be stored if one stood
// for those that hardly differ from it ("Run-Length Encoding for KV Caches";
// docs/run-length-keys.md).
//
// A key is alike another when all of its numbers are within a tolerance of that one's. It is
// compared with a stored key, never with its neighbour, so that a run cannot drift.
//
// Threading:  pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/clustering/kmeans.h"

namespace cairn::eval {

// For each key the one that stands for it: itself, or one before it that stands for itself.
using KeyStandIns = std::vector<std::int32_t>;

// Runs of neighbours, in the order of the rows of `dim`. A bit for each key says whether a run
// begins.
inline constexpr std::int64_t kOrderIndexBits = 1;
KeyStandIns RunsInOrder(std::span<const float> keys, std::int64_t dim, float tolerance);

// Any keys of a cluster, of at most 16 entries: an entry's index names one.
inline constexpr std::int64_t kClusterIndexBits = 4;
KeyStandIns RunsInClusters(std::span<const float> keys, std::int64_t dim, float tolerance,
                           const compute::PointClusters& clusters);

// Lengths 1, 2, 3 to 4, 5 to 8, and more.
inline constexpr std::array<std::string_view, 5> kRunLengthNames = {"1", "2", "3-4", "5-8", "9-"};

struct KeyRuns {
  std::int64_t key_count = 0;
  std::int64_t stored_count = 0;  // one for each run
  // Runs by their length, as kRunLengthNames.
  std::array<std::int64_t, kRunLengthNames.size()> by_length{};

  KeyRuns& operator+=(const KeyRuns& other);
  // Of the keys, those that need not be stored.
  double saved_share() const;
};
KeyRuns CountRuns(std::span<const std::int32_t> stand_ins);

// Bytes of keys of `key_bytes` that are coded with `index_bits` for each key.
std::int64_t CodedBytes(const KeyRuns& runs, std::int64_t key_bytes, std::int64_t index_bits);

// The median of how far a key is from the one before it: the largest difference of a number.
// REQUIRES: two keys.
double MedianStep(std::span<const float> keys, std::int64_t dim);

}  // namespace cairn::eval
