// BestFirst gives the indices of scores, best first, and sorts only as far as is asked for: a step
// takes a few percent of its clusters. Equal scores: the lowest index first.
//
// Threading:  one thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

class BestFirst {
 public:
  // REQUIRES: no score is NaN; fewer than 2^32 of them.
  explicit BestFirst(std::span<const float> scores) {
    keys_.reserve(scores.size());
    for (const float score : scores) keys_.push_back(KeyOf(score, keys_.size()));
  }

  bool empty() const { return next_ == keys_.size(); }
  // REQUIRES: not empty.
  std::size_t Take() {
    if (next_ == sorted_) SortMore();
    return static_cast<std::uint32_t>(keys_[next_++]);
  }

 private:
  // So many are sorted at once, about; fewer than twice that are not worth to be parted first.
  static constexpr std::size_t kSortedAtOnce = 96;
  static constexpr std::size_t kSampleCount = 128;

  // Ascends as scores descend, then with the index.
  static std::uint64_t KeyOf(float score, std::size_t index) {
    constexpr std::uint32_t kSign = 0x80000000U;
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // there is one zero
    const std::uint32_t descending = (bits & kSign) != 0 ? bits : ~(bits | kSign);
    return std::uint64_t{descending} << 32 | index;
  }

  // A pivot from a sample: what is not above it is sorted, however many that are.
  void SortMore() {
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    auto last = keys_.end();
    const std::size_t left = keys_.size() - sorted_;
    if (left > 2 * kSortedAtOnce) {
      const std::size_t stride = (left + kSampleCount - 1) / kSampleCount;
      std::vector<std::uint64_t> sample;
      sample.reserve(kSampleCount);
      for (std::size_t at = sorted_; at < keys_.size(); at += stride) sample.push_back(keys_[at]);
      const std::size_t rank = std::min(kSortedAtOnce * sample.size() / left, sample.size() - 1);
      const auto pivot = sample.begin() + static_cast<std::ptrdiff_t>(rank);
      std::nth_element(sample.begin(), pivot, sample.end());
      last =
          std::partition(first, last, [pivot = *pivot](std::uint64_t key) { return key <= pivot; });
    }
    std::sort(first, last);
    sorted_ = static_cast<std::size_t>(last - keys_.begin());
  }

  std::vector<std::uint64_t> keys_;
  std::size_t next_ = 0;
  std::size_t sorted_ = 0;
};

}  // namespace cairn::compute
