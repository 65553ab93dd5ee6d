#include "compute-node/eval/key_runs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "common/base/check.h"

namespace cairn::eval {
namespace {

std::span<const float> RowOf(std::span<const float> rows, std::int64_t dim, std::int64_t index) {
  return rows.subspan(static_cast<std::size_t>(index * dim), static_cast<std::size_t>(dim));
}

// Not a number is like nothing.
bool IsAlike(std::span<const float> key, std::span<const float> stored, float tolerance) {
  return std::equal(key.begin(), key.end(), stored.begin(),
                    [=](float a, float b) { return std::fabs(a - b) <= tolerance; });
}

// The largest difference of a number.
float Distance(std::span<const float> a, std::span<const float> b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace

KeyStandIns RunsInOrder(std::span<const float> keys, std::int64_t dim, float tolerance) {
  KeyStandIns out(keys.size() / static_cast<std::size_t>(dim));
  std::int32_t first = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (!IsAlike(RowOf(keys, dim, index), RowOf(keys, dim, first), tolerance)) {
      first = static_cast<std::int32_t>(i);
    }
    out[i] = first;
  }
  return out;
}

KeyStandIns RunsInClusters(std::span<const float> keys, std::int64_t dim, float tolerance,
                           const compute::PointClusters& clusters) {
  KeyStandIns out(keys.size() / static_cast<std::size_t>(dim));
  std::vector<std::int64_t> stored;
  for (std::int64_t cluster = 0; cluster < clusters.cluster_count(); ++cluster) {
    stored.clear();
    for (const std::int64_t index : clusters.cluster(cluster)) {
      const auto found = std::find_if(stored.begin(), stored.end(), [&](std::int64_t other) {
        return IsAlike(RowOf(keys, dim, index), RowOf(keys, dim, other), tolerance);
      });
      out[static_cast<std::size_t>(index)] =
          static_cast<std::int32_t>(found == stored.end() ? index : *found);
      if (found == stored.end()) stored.push_back(index);
    }
  }
  return out;
}

KeyRuns& KeyRuns::operator+=(const KeyRuns& other) {
  key_count += other.key_count;
  stored_count += other.stored_count;
  for (std::size_t i = 0; i < by_length.size(); ++i) by_length[i] += other.by_length[i];
  return *this;
}

double KeyRuns::saved_share() const {
  if (key_count == 0) return 0;
  return 1 - static_cast<double>(stored_count) / static_cast<double>(key_count);
}

KeyRuns CountRuns(std::span<const std::int32_t> stand_ins) {
  std::vector<std::uint32_t> lengths(stand_ins.size());
  for (const std::int32_t stand_in : stand_ins) ++lengths[static_cast<std::size_t>(stand_in)];
  KeyRuns runs;
  runs.key_count = std::ssize(stand_ins);
  for (const std::uint32_t length : lengths) {
    if (length == 0) continue;
    ++runs.stored_count;
    const auto bucket = static_cast<std::size_t>(std::bit_width(length - 1));
    ++runs.by_length[std::min(bucket, runs.by_length.size() - 1)];
  }
  return runs;
}

std::int64_t CodedBytes(const KeyRuns& runs, std::int64_t key_bytes, std::int64_t index_bits) {
  return runs.stored_count * key_bytes + (runs.key_count * index_bits + 7) / 8;
}

double MedianStep(std::span<const float> keys, std::int64_t dim) {
  const std::int64_t count = std::ssize(keys) / dim;
  CAIRN_CHECK(count >= 2);
  std::vector<float> steps;
  steps.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 1; i < count; ++i) {
    steps.push_back(Distance(RowOf(keys, dim, i), RowOf(keys, dim, i - 1)));
  }
  const auto middle = steps.begin() + std::ssize(steps) / 2;
  std::nth_element(steps.begin(), middle, steps.end());
  return *middle;
}

}  // namespace cairn::eval
