// A small fast random generator (xoshiro256++ by Blackman and Vigna, seeded through splitmix64), so
// that test data depend only on a seed and never on the standard library.
//
// Threading:  one generator per thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace cairn::test {

inline uint64_t SplitMix64(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) {
    for (uint64_t& word : state_) {
      word = SplitMix64(seed);
    }
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound); bound > 0. The bias of the modulus does not matter to tests.
  uint64_t Below(uint64_t bound) { return Next() % bound; }

  // Close to a standard normal: the sum of four 16-bit uniforms, scaled to variance 1. It costs one
  // draw, which is what makes writing a model of half a billion weights take seconds. Its tails end
  // at 3.46.
  float Normal() {
    const uint64_t bits = Next();
    const auto sum = static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                          ((bits >> 32) & 0xffff) + (bits >> 48));
    constexpr float kScale = 1.0F / 37837.2F;  // 1 / sqrt(4 * 65536^2 / 12)
    return static_cast<float>(sum - 2 * 65535) * kScale;
  }

 private:
  std::array<uint64_t, 4> state_{};
};

}  // namespace cairn::test
