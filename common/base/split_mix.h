// SplitMix: random numbers that are the same on every platform, which those of std:: distributions
// are not (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace cairn {

class SplitMix {
 public:
  // The published sequence from that state.
  explicit SplitMix(std::uint64_t state) : state_(state) {}
  // Of several numbers: each of them, and their order, gives another sequence.
  SplitMix(std::initializer_list<std::uint64_t> seeds) {
    for (const std::uint64_t seed : seeds) state_ = Next() ^ seed;
  }

  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    return mixed ^ (mixed >> 31);
  }
  // 0 to bound - 1, each as likely as the others but for bound / 2^64. REQUIRES: bound > 0.
  std::int64_t Below(std::int64_t bound) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace cairn
