#include "compute-node/model/forward/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// The pair, as a fraction, that turns `turns` times over the original context: the inverse of
//   turns = original_context * base^(-2 pair / head_dim) / (2 pi).
double PairOfTurns(const ModelConfig& config, double turns) {
  return static_cast<double>(config.head_dim) *
         std::log(config.yarn_original_context / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_freq_base));
}

// How much of a pair's frequency YaRN keeps: pairs that turn at least beta_fast times over the
// original context keep it, those that turn at most beta_slow times are interpolated. In between
// the paper falls with the number of turns, but its authors' program, and with it the engines and
// the models that were trained with one, falls with the pair's index between whole indices. Only
// that gives a model the angles that it knows.
class YarnRamp {
 public:
  explicit YarnRamp(const ModelConfig& config)
      : first_(std::max(std::floor(PairOfTurns(config, config.yarn_beta_fast)), 0.0)),
        // Those programs bound it by head_dim, not by the number of pairs.
        last_(std::min(std::ceil(PairOfTurns(config, config.yarn_beta_slow)),
                       static_cast<double>(config.head_dim - 1))) {}

  double KeptAt(std::int64_t pair) const {
    constexpr double kWidthMin = 0.001;  // a step where both ends are one pair
    const double width = std::max(last_ - first_, kWidthMin);
    return 1 - std::clamp((static_cast<double>(pair) - first_) / width, 0.0, 1.0);
  }

 private:
  double first_;
  double last_;
};

}  // namespace

RotaryAngles MakeRotaryAngles(const ModelConfig& config, std::span<const float> divisors) {
  const std::int64_t pair_count = config.head_dim / 2;
  CAIRN_CHECK(divisors.empty() || std::ssize(divisors) == pair_count);
  RotaryAngles angles;
  angles.magnitude = config.rope_magnitude;
  std::optional<YarnRamp> yarn;
  if (config.yarn_ext_factor > 0) {
    yarn.emplace(config);
    // The paper's square root of 1 / t. Nothing is stretched by a factor below one.
    const double factor = 1 / config.rope_frequency_scale;
    angles.magnitude *= factor > 1 ? 0.1 * std::log(factor) + 1 : 1;
  }
  for (std::int64_t i = 0; i < pair_count; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    const double plain = std::pow(config.rope_freq_base, exponent);
    double frequency = plain * config.rope_frequency_scale;
    if (yarn) {
      const double kept = yarn->KeptAt(i) * config.yarn_ext_factor;
      frequency = frequency * (1 - kept) + plain * kept;
    }
    if (!divisors.empty()) frequency /= static_cast<double>(divisors[static_cast<std::size_t>(i)]);
    angles.frequencies.push_back(frequency);
  }
  return angles;
}

}  // namespace cairn::compute
