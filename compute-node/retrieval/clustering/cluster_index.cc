#include "compute-node/retrieval/clustering/cluster_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "compute-node/kernels/centroids.h"

namespace cairn::compute {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Removed clusters that stay in the arrays, at least.
constexpr std::int64_t kDeadSlotsMin = 64;

// Room to grow: a 32nd. What a vector that doubles holds in vain is up to half of an index; a
// decode of 1,000 tokens adds about a 16th of 16K tokens' clusters.
constexpr std::size_t kGrowthShare = 32;
constexpr std::size_t kGrowthSlotsMin = 16;

// Leaves that room where there is more than a quarter.
template <typename Value>
void Trim(std::vector<Value>& values) {
  if (values.capacity() <= values.size() + values.size() / 4) return;
  std::vector<Value> trimmed;
  trimmed.reserve(values.size() + values.size() / kGrowthShare);
  trimmed.insert(trimmed.end(), values.begin(), values.end());
  values = std::move(trimmed);
}

std::vector<float> MeanRow(std::span<const float> rows, std::size_t width) {
  const std::size_t row_count = rows.size() / width;
  std::vector<double> sum(width, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) sum[i % width] += static_cast<double>(rows[i]);
  std::vector<float> mean;
  mean.reserve(width);
  for (const double s : sum) mean.push_back(static_cast<float>(s / static_cast<double>(row_count)));
  return mean;
}

}  // namespace

ClusterMoments MomentsOf(std::span<const float> keys, std::int64_t dim,
                         std::span<const float> values) {
  const std::size_t width = static_cast<std::size_t>(dim);
  const std::size_t count = keys.size() / width;
  CAIRN_CHECK_LT(0U, count);
  ClusterMoments moments;
  moments.count = static_cast<std::int64_t>(count);
  moments.centroid = MeanRow(keys, width);
  if (!values.empty()) {
    CAIRN_CHECK_EQ(values.size(), keys.size());
    moments.value = MeanRow(values, width);
  }
  double squares = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double off =
        static_cast<double>(keys[i]) - static_cast<double>(moments.centroid[i % width]);
    squares += off * off;
  }
  moments.variance = static_cast<float>(squares / static_cast<double>(count));
  return moments;
}

ClusterIndex::ClusterIndex(std::int64_t dim, bool keeps_values)
    : dim_(dim), keeps_values_(keeps_values), centre_(static_cast<std::size_t>(dim), 0.0F) {}

std::int64_t ClusterIndex::memory_bytes() const {
  const std::size_t slot_bytes = sizeof(std::int64_t) + 3 * sizeof(float) + sizeof(std::int32_t) +
                                 1 + (keeps_values_ ? sizeof(float) : 0);
  return static_cast<std::int64_t>(ids_.capacity() * slot_bytes + sketches_.capacity() +
                                   codes_.capacity() + value_codes_.capacity() +
                                   kept_slots_.capacity() * sizeof(std::size_t));
}

std::int64_t ClusterIndex::code_bytes() const {
  return std::ssize(ids_) * dim_ * (keeps_values_ ? 2 : 1);
}

void ClusterIndex::SetCentre(std::span<const float> centre, bool transformed) {
  CAIRN_CHECK(ids_.empty());
  transformed_ = transformed;
  centre_.assign(centre.begin(), centre.end());
}

void ClusterIndex::Relative(std::span<const float> key, std::vector<float>& relative) const {
  relative.resize(key.size());
  for (std::size_t i = 0; i < key.size(); ++i) relative[i] = key[i] - centre_[i % centre_.size()];
}

std::size_t ClusterIndex::AddSlot(ClusterId id, std::int64_t count, float variance,
                                  std::uint8_t flags) {
  CAIRN_CHECK(ids_.empty() || ids_.back() < id.value());
  const std::size_t slot = ids_.size();
  if (slot == ids_.capacity()) Reserve(slot + std::max(slot / kGrowthShare, kGrowthSlotsMin));
  ForEachArray([](auto& values, std::size_t width) { values.resize(values.size() + width); });
  ids_[slot] = id.value();
  half_squares_[slot] = kInfinity;
  variances_[slot] = variance;
  counts_[slot] = static_cast<std::int32_t>(count);
  flags_[slot] = flags;
  entry_count_ += count;
  return slot;
}

void ClusterIndex::Clear() {
  dead_count_ = 0;
  entry_count_ = 0;
  is_loaded_ = true;
  kept_slots_.clear();
  unknown_slots_.clear();
  ForEachArray([](auto& values, std::size_t /*width*/) { values.clear(); });
}

void ClusterIndex::Reserve(std::size_t slot_count) {
  ForEachArray([&](auto& values, std::size_t width) { values.reserve(slot_count * width); });
}

void ClusterIndex::WriteCentroid(std::size_t slot, std::span<const float> centroid) {
  const std::size_t at = MakePlace(slot) * static_cast<std::size_t>(dim_);  // may move all codes
  scales_[slot] = QuantizeCentroid(centroid, codes_.data() + at);
  SetSketch(slot, codes(slot));
  SetHalfSquare(slot, codes(slot));
}

void ClusterIndex::WriteValue(std::size_t slot, std::span<const float> value) {
  if (!keeps_values_) return;
  const std::size_t width = static_cast<std::size_t>(dim_);
  CAIRN_CHECK_EQ(value.size(), width);
  const std::size_t at = MakePlace(slot) * width;  // may move all codes
  std::int8_t* const value_codes = value_codes_.data() + at;
  // A row without finite numbers would be none; an entry that is attended spoils what it must.
  if (!std::all_of(value.begin(), value.end(), [](float x) { return std::isfinite(x); })) {
    std::fill_n(value_codes, width, 0);
    value_scales_[slot] = 0;
    return;
  }
  value_scales_[slot] = QuantizeCentroid(value, value_codes);
}

void ClusterIndex::SetSketch(std::size_t slot, std::span<const std::int8_t> codes) {
  SketchOf(codes, sketches_.data() + slot * static_cast<std::size_t>(dim_ / 2));
}

// From what a row holds, so that a restored slot is the same to the last bit.
void ClusterIndex::SetHalfSquare(std::size_t slot, std::span<const std::int8_t> codes) {
  std::int32_t square = 0;
  for (const std::int8_t code : codes) square += std::int32_t{code} * code;
  const bool hidden = (flags_[slot] & (kPinned | kMissing)) != 0;
  half_squares_[slot] =
      hidden ? kInfinity : 0.5F * scales_[slot] * scales_[slot] * static_cast<float>(square);
}

std::size_t ClusterIndex::Add(ClusterId id, const ClusterMoments& moments, Flags flags) {
  const std::size_t slot = AddSlot(id, moments.count, moments.variance, 0);
  MakePlace(slot);
  SetFlags(slot, flags);
  std::vector<float> relative;
  Relative(moments.centroid, relative);
  WriteCentroid(slot, relative);
  WriteValue(slot, moments.value);
  return slot;
}

void ClusterIndex::Transform(const std::function<void(std::span<float>)>& change) {
  CAIRN_CHECK(!transformed_ && is_loaded_);
  transformed_ = true;
  const std::vector<float> old_centre = centre_;
  change(centre_);
  std::vector<float> relative;
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (!alive(slot)) continue;
    std::vector<float> centroid = old_centre;
    for (std::size_t i = 0; i < centroid.size(); ++i) {
      centroid[i] += scales_[slot] * static_cast<float>(codes(slot)[i]);
    }
    change(centroid);
    Relative(centroid, relative);
    WriteCentroid(slot, relative);
    flags_[slot] |= kStale | kChanged;
  }
}

void ClusterIndex::Set(std::size_t slot, const ClusterMoments& moments) {
  entry_count_ += moments.count - counts_[slot];
  counts_[slot] = static_cast<std::int32_t>(moments.count);
  variances_[slot] = moments.variance;
  std::vector<float> relative;
  Relative(moments.centroid, relative);
  WriteCentroid(slot, relative);
  WriteValue(slot, moments.value);
  flags_[slot] |= kChanged;
}

void ClusterIndex::Remove(std::size_t slot) {
  CAIRN_CHECK(alive(slot));
  entry_count_ -= counts_[slot];
  counts_[slot] = 0;
  flags_[slot] = 0;
  half_squares_[slot] = kInfinity;
  ++dead_count_;
  if (is_loaded_) return;
  const auto at = std::lower_bound(kept_slots_.begin(), kept_slots_.end(), slot);
  if (at == kept_slots_.end() || *at != slot) return;
  const std::ptrdiff_t first = (at - kept_slots_.begin()) * dim_;
  kept_slots_.erase(at);
  codes_.erase(codes_.begin() + first, codes_.begin() + first + dim_);
  if (!keeps_values_) return;
  value_codes_.erase(value_codes_.begin() + first, value_codes_.begin() + first + dim_);
}

void ClusterIndex::Compact() {
  if (dead_count_ >= kDeadSlotsMin && dead_count_ * 4 >= std::ssize(ids_)) RemoveDeadSlots();
  ForEachArray([](auto& values, std::size_t /*width*/) { Trim(values); });
  if (is_loaded_) return;
  Trim(codes_);
  Trim(value_codes_);
}

void ClusterIndex::RemoveDeadSlots() {
  std::vector<std::size_t> old_slots;  // of those that stay
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (alive(slot)) old_slots.push_back(slot);
  }
  for (std::size_t& kept : kept_slots_) {
    const auto at = std::lower_bound(old_slots.begin(), old_slots.end(), kept);
    kept = static_cast<std::size_t>(at - old_slots.begin());
  }
  ForEachArray([&](auto& values, std::size_t width) {
    for (std::size_t to = 0; to < old_slots.size(); ++to) {
      std::memmove(values.data() + to * width, values.data() + old_slots[to] * width,
                   width * sizeof(values[0]));
    }
    values.resize(old_slots.size() * width);
  });
  unknown_slots_.clear();
  dead_count_ = 0;
}

std::optional<std::size_t> ClusterIndex::Find(ClusterId id) const {
  const auto at = std::lower_bound(ids_.begin(), ids_.end(), id.value());
  if (at == ids_.end() || *at != id.value()) return std::nullopt;
  const std::size_t slot = static_cast<std::size_t>(at - ids_.begin());
  return alive(slot) ? std::optional(slot) : std::nullopt;
}

std::vector<float> ClusterIndex::Centroid(std::size_t slot) const {
  std::vector<float> centroid = centre_;
  for (std::size_t i = 0; i < centroid.size(); ++i) {
    centroid[i] += scales_[slot] * static_cast<float>(codes(slot)[i]);
  }
  return centroid;
}

void ClusterIndex::LoadMeans(std::span<const ClusterId> clusters, KvBlock& block,
                             std::span<float> counts) const {
  CAIRN_CHECK(keeps_values_ && is_loaded_ && clusters.size() <= kAttentionBlockEntries);
  const std::size_t width = static_cast<std::size_t>(dim_);
  std::array<const std::int8_t*, kAttentionBlockEntries> keys;
  std::array<const std::int8_t*, kAttentionBlockEntries> values;
  std::array<float, kAttentionBlockEntries> key_scales;
  std::array<float, kAttentionBlockEntries> value_scales;
  std::size_t slot = 0;
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    if (i == 0) {
      slot = Find(clusters[i]).value();
    } else {
      // Mostly the next one or one of the next few.
      while (slot < ids_.size() && ids_[slot] < clusters[i].value()) ++slot;
      CAIRN_CHECK(slot < ids_.size() && ids_[slot] == clusters[i].value());
    }
    keys[i] = codes_.data() + slot * width;
    values[i] = value_codes_.data() + slot * width;
    key_scales[i] = scales_[slot];
    value_scales[i] = value_scales_[slot];
    counts[i] = static_cast<float>(counts_[slot]);
  }
  cairn::compute::LoadMeans({.keys = std::span(keys).first(clusters.size()),
                             .key_scales = std::span(key_scales).first(clusters.size()),
                             .centre = centre_,
                             .values = std::span(values).first(clusters.size()),
                             .value_scales = std::span(value_scales).first(clusters.size())},
                            block);
}

ClusterIndex::Flags ClusterIndex::flags(std::size_t slot) const {
  const std::uint8_t bits = flags_[slot];
  return {.pinned = (bits & kPinned) != 0,
          .split = (bits & kSplit) != 0,
          .stale = (bits & kStale) != 0,
          .missing = (bits & kMissing) != 0};
}

void ClusterIndex::SetFlags(std::size_t slot, Flags flags) {
  flags_[slot] = static_cast<std::uint8_t>((flags.pinned ? kPinned : 0) |
                                           (flags.split ? kSplit : 0) | (flags.stale ? kStale : 0) |
                                           (flags.missing ? kMissing : 0) | kChanged);
  SetHalfSquare(slot, codes(slot));
}

float ClusterIndex::VarianceWith(std::size_t slot, std::span<const float> key) const {
  const std::span<const std::int8_t> centroid = codes(slot);
  float distance = 0;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const float off = key[i] - centre_[i] - scales_[slot] * static_cast<float>(centroid[i]);
    distance += off * off;
  }
  const float n = static_cast<float>(counts_[slot]);
  return n / (n + 1) * (variances_[slot] + distance / (n + 1));
}

void ClusterIndex::Append(std::size_t slot, std::span<const float> key, float variance,
                          std::span<const float> value) {
  const std::span<const std::int8_t> centroid = codes(slot);
  const float share = 1.0F / static_cast<float>(counts_[slot] + 1);
  std::vector<float> moved(key.size());
  for (std::size_t i = 0; i < key.size(); ++i) {
    const float old = scales_[slot] * static_cast<float>(centroid[i]);
    moved[i] = old + (key[i] - centre_[i] - old) * share;
  }
  if (keeps_values_) {
    CAIRN_CHECK_EQ(value.size(), key.size());
    const std::int8_t* old_codes = value_codes(slot);
    std::vector<float> mean(key.size());
    for (std::size_t i = 0; i < key.size(); ++i) {
      const float old = value_scales_[slot] * static_cast<float>(old_codes[i]);
      mean[i] = old + (value[i] - old) * share;
    }
    WriteValue(slot, mean);
  }
  ++counts_[slot];
  ++entry_count_;
  if (!FailPoint("a variance does not follow what joins its cluster")) variances_[slot] = variance;
  if (!FailPoint("a centroid does not follow what joins its cluster")) WriteCentroid(slot, moved);
  flags_[slot] |= kChanged;
}

void ClusterIndex::Score(std::span<const float> query, float spread_weight,
                         std::span<float> scores) const {
  ScoreSketches(query, sketches_.data(), scales_, scores);
  if (spread_weight != 0) {
    const float deviation =
        spread_weight * std::sqrt(2 * HalfSquare(query) / static_cast<float>(dim_));
    for (std::size_t slot = 0; slot < variances_.size(); ++slot) {
      scores[slot] += deviation * std::sqrt(variances_[slot]);
    }
  }
  for (std::size_t slot = 0; slot < counts_.size(); ++slot) {
    // What is not a number has no place in an order.
    if (counts_[slot] == 0 || std::isnan(scores[slot])) scores[slot] = -kInfinity;
  }
}

void ClusterIndex::Nearest(std::span<const float> keys, std::span<std::int32_t> slots) const {
  CAIRN_CHECK(is_loaded_);
  std::vector<float> relative;
  Relative(keys, relative);
  NearestCode(
      relative,
      {.dim = dim_, .codes = codes_.data(), .scales = scales_, .half_squares = half_squares_},
      slots);
}

}  // namespace cairn::compute
