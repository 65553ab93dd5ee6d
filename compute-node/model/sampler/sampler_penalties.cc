#include "compute-node/model/sampler/sampler_penalties.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include "common/base/check.h"
#include "compute-node/model/config.h"

// Compiled with -ffp-contract=off: fused multiply-adds would make the result depend on the
// processor.

namespace cairn::compute {
namespace {

absl::Status ValidateBias(const std::vector<LogitBias>& biases) {
  if (std::ssize(biases) > kLogitBiasCountMax) {
    return InvalidArgument("logit_bias has {} tokens: at most {} are allowed", biases.size(),
                           kLogitBiasCountMax);
  }
  std::unordered_set<std::int32_t> ids;
  for (const LogitBias& bias : biases) {
    if (bias.id < 0 || bias.id >= kVocabSizeMax) {
      return InvalidArgument("logit_bias has token {}: ids are 0 to {}", bias.id,
                             kVocabSizeMax - 1);
    }
    if (!(bias.bias <= kLogitBiasMax)) {
      return InvalidArgument("logit_bias of token {} is {}: it must be at most {}; {} bans a token",
                             bias.id, bias.bias, kLogitBiasMax, kLogitBiasBan);
    }
    if (!ids.insert(bias.id).second) {
      return InvalidArgument("logit_bias has token {} twice: give it once", bias.id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PenaltyOptions::Validate() const {
  if (!(repetition_penalty >= kRepetitionPenaltyMin &&
        repetition_penalty <= kRepetitionPenaltyMax)) {
    return InvalidArgument("repetition_penalty is {}, expected {} to {}; 1 is none",
                           repetition_penalty, kRepetitionPenaltyMin, kRepetitionPenaltyMax);
  }
  if (!(presence_penalty >= -kPenaltyMax && presence_penalty <= kPenaltyMax)) {
    return InvalidArgument("presence_penalty is {}, expected {} to {}; 0 is none", presence_penalty,
                           -kPenaltyMax, kPenaltyMax);
  }
  if (!(frequency_penalty >= -kPenaltyMax && frequency_penalty <= kPenaltyMax)) {
    return InvalidArgument("frequency_penalty is {}, expected {} to {}; 0 is none",
                           frequency_penalty, -kPenaltyMax, kPenaltyMax);
  }
  if (penalty_last_tokens < -1 || penalty_last_tokens > kPenaltyLastTokensMax) {
    return InvalidArgument("penalty_last_tokens is {}, expected -1 (all tokens) to {}",
                           penalty_last_tokens, kPenaltyLastTokensMax);
  }
  return ValidateBias(logit_bias);
}

std::int64_t PenaltyOptions::HistoryTokens() const {
  if (repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0) return 0;
  return penalty_last_tokens < 0 ? std::numeric_limits<std::int64_t>::max() : penalty_last_tokens;
}

SamplerPenalties::SamplerPenalties(PenaltyOptions options)
    : options_(std::move(options)), history_tokens_(options_.HistoryTokens()) {}

void SamplerPenalties::Add(std::span<const std::int32_t> ids) {
  if (std::ssize(ids) > history_tokens_) {
    ids = ids.last(static_cast<std::size_t>(history_tokens_));
  }
  for (const std::int32_t id : ids) {
    newest_.push_back(id);
    ++counts_[id];
    if (std::ssize(newest_) <= history_tokens_) continue;
    const auto oldest = counts_.find(newest_.front());
    if (--oldest->second == 0) counts_.erase(oldest);
    newest_.pop_front();
  }
}

float SamplerPenalties::Penalised(float logit, std::int64_t count) const {
  double value = static_cast<double>(logit);
  value = value > 0 ? value / options_.repetition_penalty : value * options_.repetition_penalty;
  value -= options_.frequency_penalty * static_cast<double>(count);
  value -= options_.presence_penalty;
  return static_cast<float>(value);
}

void SamplerPenalties::Apply(std::span<float> logits) const {
  for (const LogitBias& bias : options_.logit_bias) {
    CAIRN_CHECK_LT(bias.id, std::ssize(logits));
    float& logit = logits[static_cast<std::size_t>(bias.id)];
    logit = bias.bias <= kLogitBiasBan ? -std::numeric_limits<float>::infinity()
                                       : static_cast<float>(static_cast<double>(logit) + bias.bias);
  }
  // In any order: each token is changed by itself.
  for (const auto& [id, count] : counts_) {
    CAIRN_CHECK(id >= 0 && id < std::ssize(logits));
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = Penalised(logit, count);
  }
}

}  // namespace cairn::compute
