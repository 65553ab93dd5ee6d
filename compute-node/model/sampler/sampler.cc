#include "compute-node/model/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <absl/numeric/int128.h>

#include "common/base/split_mix.h"
#include "compute-node/model/config.h"
#include "compute-node/model/sampler/sampler_weight.h"

// Compiled with -ffp-contract=off: fused multiply-adds would make the result depend on the
// processor.

namespace cairn::compute {
namespace {

constexpr double kTemperatureMax = 100.0;
// Of badness, see KeepShare, for a factor of e in probability.
constexpr double kClassesPerUnit = 8.0;
constexpr std::string_view kStateMagic = "CSR1";  // sampler random state, version 1
static_assert(std::endian::native == std::endian::little, "stored states are in this order");

}  // namespace

absl::Status SamplerOptions::Validate() const {
  if (!(temperature >= 0.0 && temperature <= kTemperatureMax)) {
    return InvalidArgument("temperature is {}, expected 0 to {}", temperature, kTemperatureMax);
  }
  if (top_k < 0 || top_k > kVocabSizeMax) {
    return InvalidArgument("top_k is {}, expected 0 (all tokens) to {}", top_k, kVocabSizeMax);
  }
  if (!(typical_p > 0.0 && typical_p <= 1.0)) {
    return InvalidArgument("typical_p is {}, expected above 0, at most 1 (all tokens)", typical_p);
  }
  if (!(top_p > 0.0 && top_p <= 1.0)) {
    return InvalidArgument("top_p is {}, expected above 0, at most 1 (all tokens)", top_p);
  }
  if (!(min_p >= 0.0 && min_p <= 1.0)) {
    return InvalidArgument("min_p is {}, expected 0 (all tokens) to 1", min_p);
  }
  return penalties.Validate();
}

absl::StatusOr<Sampler> Sampler::Create(const SamplerOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options), penalties_(options.penalties) {
  SplitMix seeds(options.seed);
  for (std::uint64_t& word : state_) {
    word = seeds.Next();
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

bool Sampler::IsLikelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

Sampler::Best Sampler::FindBest(std::span<const float> logits) {
  Best best{-std::numeric_limits<float>::infinity(), -1};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best.logit) {
      best = {logits[i], static_cast<std::int32_t>(i)};
    }
  }
  return best;
}

absl::StatusOr<std::int32_t> Sampler::Sample(std::span<const float> logits) {
  Best best = FindBest(logits);
  if (best.id < 0 || !std::isfinite(best.logit)) {
    return Internal(
        "sample a token: the largest of {} logits is {}: the model's numbers became too large for "
        "32 bits, as those of a damaged file do; get the file again, or another conversion of it",
        logits.size(), best.logit);
  }
  if (!penalties_.off()) {
    CAIRN_ASSIGN_OR_RETURN(best, Adjust(logits));
    logits = adjusted_;
  }
  largest_ = static_cast<double>(best.logit);
  const std::int32_t id = options_.temperature == 0.0 ? best.id : Draw(logits);
  penalties_.Add({&id, 1});
  return id;
}

absl::StatusOr<Sampler::Best> Sampler::Adjust(std::span<const float> logits) {
  adjusted_.assign(logits.begin(), logits.end());
  penalties_.Apply(adjusted_);
  const Best best = FindBest(adjusted_);
  if (best.id < 0) {
    return InvalidArgument(
        "logit_bias leaves none of {} tokens: ban fewer, or give some a bias above {}",
        logits.size(), kLogitBiasBan);
  }
  if (!std::isfinite(best.logit)) {
    return Internal("sample a token: the largest of {} logits is {} after the penalties",
                    logits.size(), best.logit);
  }
  return best;
}

std::int32_t Sampler::Draw(std::span<const float> logits) {
  if (options_.top_k > 0) {
    CollectTopK(logits);
  } else {
    Collect(logits);
  }
  KeepTypical();
  KeepTopP();
  KeepMinP();
  // Some candidate is always left, and no weight is 0: the total is not 0. The high half of the
  // product maps a uniform 64-bit number to [0, total).
  std::uint64_t draw = absl::Uint128High64(absl::uint128(NextRandom()) * TotalWeight());
  for (const Candidate& candidate : candidates_) {
    if (draw < candidate.weight) {
      return candidate.id;
    }
    draw -= candidate.weight;
  }
  return candidates_.back().id;
}

double Sampler::Exponent(float logit) const {
  return (static_cast<double>(logit) - largest_) / options_.temperature;
}

void Sampler::Collect(std::span<const float> logits) {
  candidates_.clear();
  double exponent_min = kSamplerExponentMin;
  if (options_.min_p > 0.0 && options_.typical_p >= 1.0 && options_.top_p >= 1.0) {
    // KeepMinP would drop what lies below; the library's log is exact enough with a margin.
    exponent_min = std::max(exponent_min, std::log(options_.min_p) - 0.01);
  }
  // A comparison of floats passes over most logits in no time. Those that are not numbers fail it.
  const float logit_min =
      std::nextafter(static_cast<float>(largest_ + exponent_min * options_.temperature),
                     -std::numeric_limits<float>::infinity());
  // In blocks and without branches on the logits, which no processor could predict.
  constexpr std::size_t kBlock = 256;
  std::array<std::int32_t, kBlock>
      ids;  // NOLINT(cppcoreguidelines-pro-type-member-init): in a moment
  const double largest = largest_;
  const double temperature = options_.temperature;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, logits.size());
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      ids[count] = static_cast<std::int32_t>(i);
      count += logits[i] >= logit_min ? 1 : 0;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const float logit = logits[static_cast<std::size_t>(ids[i])];
      const std::uint64_t weight =
          SamplerWeight((static_cast<double>(logit) - largest) / temperature);
      if (weight > 0) {
        candidates_.push_back({logit, ids[i], weight});
      }
    }
  }
}

void Sampler::CollectTopK(std::span<const float> logits) {
  candidates_.clear();
  // One more than k, to see whether there are more than k. When they are twice as many as needed,
  // the less likely half goes, and what is not above the least likely of the rest need not come.
  const auto wanted = static_cast<std::size_t>(options_.top_k) + 1;
  float logit_min = -std::numeric_limits<float>::infinity();
  const auto keep_wanted = [&] {
    std::nth_element(candidates_.begin(),
                     candidates_.begin() + static_cast<std::ptrdiff_t>(wanted) - 1,
                     candidates_.end(), IsLikelier);
    candidates_.resize(wanted);
    logit_min = candidates_.back().logit;
  };
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > logit_min)) {
      continue;  // also what is not a number
    }
    candidates_.push_back({logits[i], static_cast<std::int32_t>(i), 0});
    if (candidates_.size() == 2 * wanted) {
      keep_wanted();
    }
  }
  if (candidates_.size() > wanted) {
    keep_wanted();
  }
  // nth_element leaves an order that depends on the library; the draw must not.
  std::sort(candidates_.begin(), candidates_.end(), IsLikelier);
  for (Candidate& candidate : candidates_) {
    candidate.weight = SamplerWeight(Exponent(candidate.logit));
  }
  std::erase_if(candidates_, [](const Candidate& candidate) { return candidate.weight == 0; });
  if (candidates_.size() == wanted) {
    candidates_.pop_back();
  } else {
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
}

std::uint64_t Sampler::TotalWeight() const {
  std::uint64_t total = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
  }
  return total;
}

template <typename Badness>
void Sampler::KeepShare(double share, double classes_per_unit, Badness badness) {
  const auto wanted = static_cast<std::uint64_t>(static_cast<double>(TotalWeight()) * share);
  // Usually a few of many tokens are kept. Classes of like badness tell which come into question;
  // only those are put in order.
  constexpr std::size_t kClassCount = 256;
  const auto class_of = [&](const Candidate& candidate) {
    return static_cast<std::size_t>(
        std::min(badness(candidate) * classes_per_unit, kClassCount - 1.0));
  };
  std::array<std::uint64_t, kClassCount> class_weights{};
  for (const Candidate& candidate : candidates_) {
    class_weights[class_of(candidate)] += candidate.weight;
  }
  std::size_t last_class = 0;
  std::uint64_t sum = class_weights[0];
  while ((sum == 0 || sum < wanted) && last_class + 1 < kClassCount) {
    sum += class_weights[++last_class];
  }
  std::erase_if(candidates_, [&](const Candidate& c) { return class_of(c) > last_class; });

  const auto worse = [&](const Candidate& a, const Candidate& b) {
    const double badness_a = badness(a);
    const double badness_b = badness(b);
    return badness_a != badness_b ? badness_a > badness_b : IsLikelier(b, a);
  };
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  auto heap_end = candidates_.end();
  sum = 0;
  while (heap_end != candidates_.begin() && (sum == 0 || sum < wanted)) {
    std::pop_heap(candidates_.begin(), heap_end, worse);
    --heap_end;
    sum += heap_end->weight;
  }
  candidates_.erase(candidates_.begin(), heap_end);
}

void Sampler::KeepTypical() {
  if (options_.typical_p >= 1.0) {
    return;
  }
  // With x the exponents and z the sum of all exp(x): -log(p) is log(z) - x, and the expected
  // surprise is log(z) - mean(x). So they differ by mean(x) - x, and no logarithm is needed.
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) {
    sum += static_cast<double>(candidate.weight) * Exponent(candidate.logit);
  }
  const double mean = sum / static_cast<double>(TotalWeight());
  KeepShare(options_.typical_p, kClassesPerUnit, [this, mean](const Candidate& candidate) {
    return std::abs(mean - Exponent(candidate.logit));
  });
}

void Sampler::KeepTopP() {
  if (options_.top_p >= 1.0) {
    return;
  }
  // In logits instead of exponents, which saves a division for each token. The bound keeps 0 * it a
  // number.
  const double classes_per_unit = std::min(kClassesPerUnit / options_.temperature, 1e300);
  KeepShare(options_.top_p, classes_per_unit, [this](const Candidate& candidate) {
    return largest_ - static_cast<double>(candidate.logit);
  });
}

void Sampler::KeepMinP() {
  if (options_.min_p <= 0.0) {
    return;
  }
  std::uint64_t largest = 0;
  for (const Candidate& candidate : candidates_) {
    largest = std::max(largest, candidate.weight);
  }
  const double weight_min = options_.min_p * static_cast<double>(largest);
  std::erase_if(candidates_, [weight_min](const Candidate& candidate) {
    return static_cast<double>(candidate.weight) < weight_min;
  });
}

std::string Sampler::SaveState() const {
  std::string bytes(kStateMagic);
  return bytes.append(reinterpret_cast<const char*>(state_.data()), sizeof(state_));
}

absl::Status Sampler::RestoreState(std::string_view bytes) {
  if (bytes.size() != kStateMagic.size() + sizeof(state_) || !bytes.starts_with(kStateMagic)) {
    return DataLoss("restore the sampler: {} bytes that are not a sampler state of {} bytes",
                    bytes.size(), kStateMagic.size() + sizeof(state_));
  }
  std::array<std::uint64_t, 4> state{};
  std::memcpy(state.data(), bytes.data() + kStateMagic.size(), sizeof(state));
  if (state == std::array<std::uint64_t, 4>()) {
    return DataLoss("restore the sampler: its random state is all zero, which no seed gives");
  }
  state_ = state;
  return absl::OkStatus();
}

}  // namespace cairn::compute
