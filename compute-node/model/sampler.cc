#include "compute-node/model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "compute-node/model/config.h"

// Compiled with -ffp-contract=off: fused multiply-adds would make the result depend on the
// processor.

namespace cairn::compute {
namespace {

constexpr double kTemperatureMax = 100.0;
// Weights are exp(x) * 2^40; 2^22 of them at most fit in 64 bits.
constexpr int kWeightBits = 40;
constexpr std::string_view kStateMagic = "CSR1";  // sampler random state, version 1

// exp(x) for x <= 0 by basic operations only, which IEEE 754 defines to the last bit; the
// libraries' exp() differ there.
double ExpOfNonPositive(double x) {
  if (x < -64.0) {  // below 2^-92: a weight of 0
    return 0.0;
  }
  constexpr double kLn2 = 0.693147180559945309417232121458;
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;  // in [-ln2/2, ln2/2]
  double sum = 1.0;  // Horner's form of the Taylor series to the 14th power: error below 2^-52
  for (int n = 14; n >= 1; --n) {
    sum = 1.0 + sum * rest / n;
  }
  return std::ldexp(sum, static_cast<int>(power));
}

std::uint64_t SplitMix(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// The high half of a 64 x 64 bit product, from 32-bit halves: maps a uniform 64-bit number to [0,
// bound).
std::uint64_t MultiplyHigh(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kLow = 0xffffffff;
  const std::uint64_t low = (a & kLow) * (b & kLow);
  const std::uint64_t middle = (a >> 32) * (b & kLow) + (low >> 32);
  const std::uint64_t cross = (a & kLow) * (b >> 32) + (middle & kLow);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (cross >> 32);
}

}  // namespace

absl::Status SamplerOptions::Validate() const {
  if (!(temperature >= 0.0 && temperature <= kTemperatureMax)) {
    return InvalidArgument("temperature is {}, expected 0 to {}", temperature, kTemperatureMax);
  }
  if (top_k < 0 || top_k > kVocabSizeMax) {
    return InvalidArgument("top_k is {}, expected 0 (all tokens) to {}", top_k, kVocabSizeMax);
  }
  if (!(top_p > 0.0 && top_p <= 1.0)) {
    return InvalidArgument("top_p is {}, expected above 0, at most 1 (all tokens)", top_p);
  }
  return absl::OkStatus();
}

absl::StatusOr<Sampler> Sampler::Create(const SamplerOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  std::uint64_t seed = options.seed;
  for (std::uint64_t& word : state_) {
    word = SplitMix(seed);
  }
}

// xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021).
std::uint64_t Sampler::NextRandom() {
  const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

absl::StatusOr<std::int32_t> Sampler::Sample(std::span<const float> logits) {
  std::int32_t best = -1;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > largest) {
      largest = logits[i];
      best = static_cast<std::int32_t>(i);
    }
  }
  if (best < 0 || !std::isfinite(largest)) {
    return Internal("sample a token: the largest of {} logits is {}", logits.size(), largest);
  }
  if (options_.temperature == 0.0) {
    return best;
  }
  Collect(logits, largest);
  KeepTopK();
  KeepTopP();
  std::uint64_t total = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
  }
  // The largest logit is always among the candidates and weighs 2^40, so that the total is not 0.
  std::uint64_t draw = MultiplyHigh(NextRandom(), total);
  for (const Candidate& candidate : candidates_) {
    if (draw < candidate.weight) {
      return candidate.id;
    }
    draw -= candidate.weight;
  }
  return best;
}

void Sampler::Collect(std::span<const float> logits, float largest) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double scaled =
        (static_cast<double>(logits[i]) - static_cast<double>(largest)) / options_.temperature;
    if (!(scaled <= 0.0)) {
      continue;  // not a number
    }
    const auto weight =
        static_cast<std::uint64_t>(std::ldexp(ExpOfNonPositive(scaled), kWeightBits));
    if (weight > 0) {
      candidates_.push_back({logits[i], static_cast<std::int32_t>(i), weight});
    }
  }
}

void Sampler::KeepTopK() {
  const auto k = static_cast<std::ptrdiff_t>(options_.top_k);
  if (k == 0 || k >= static_cast<std::ptrdiff_t>(candidates_.size())) {
    return;
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), likelier);
  candidates_.resize(static_cast<std::size_t>(k));
  // nth_element leaves an order that depends on the library; the draw must not.
  std::sort(candidates_.begin(), candidates_.end(), likelier);
}

void Sampler::KeepTopP() {
  if (options_.top_p >= 1.0) {
    return;
  }
  std::uint64_t total = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
  }
  const auto wanted = static_cast<std::uint64_t>(static_cast<double>(total) * options_.top_p);
  // A heap, because usually only a few of the many tokens are taken.
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto heap_end = candidates_.end();
  std::uint64_t sum = 0;
  while (heap_end != candidates_.begin() && (sum == 0 || sum < wanted)) {
    std::pop_heap(candidates_.begin(), heap_end, less_likely);
    --heap_end;
    sum += heap_end->weight;
  }
  candidates_.erase(candidates_.begin(), heap_end);
}

std::string Sampler::SaveState() const {
  std::string bytes(kStateMagic);
  for (const std::uint64_t word : state_) {
    for (int shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<char>(word >> shift & 0xff));
    }
  }
  return bytes;
}

absl::Status Sampler::RestoreState(std::string_view bytes) {
  if (bytes.size() != kStateMagic.size() + sizeof(state_) || !bytes.starts_with(kStateMagic)) {
    return DataLoss("restore the sampler: {} bytes that are not a sampler state of {} bytes",
                    bytes.size(), kStateMagic.size() + sizeof(state_));
  }
  std::array<std::uint64_t, 4> state{};
  std::size_t position = kStateMagic.size();
  std::uint64_t any = 0;
  for (std::uint64_t& word : state) {
    for (int shift = 0; shift < 64; shift += 8) {
      word |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes[position++])) << shift;
    }
    any |= word;
  }
  if (any == 0) {
    return DataLoss("restore the sampler: its random state is all zero, which no seed gives");
  }
  state_ = state;
  return absl::OkStatus();
}

}  // namespace cairn::compute
