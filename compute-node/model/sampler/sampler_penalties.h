// SamplerPenalties changes logits before a token is chosen from them: a bias for single tokens, and
// penalties for tokens that came already. For each token, in this order:
//   bias        l + bias; a bias of kLogitBiasBan or less takes the token out
//   repetition  l / p if l > 0, else l * p             (CTRL, Keskar et al. 2019)
//   frequency   l - p * (how often the token came)     (as OpenAI's API defines both)
//   presence    l - p
// What came is the newest tokens of the conversation, its prompt included: as many as
// penalty_last_tokens says, and as far as Add told them.
//
// Determinism: the same on every platform; sums are doubles, rounded to a float at the end.
// Threading:   one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"

namespace cairn::compute {

inline constexpr std::int64_t kLogitBiasCountMax = 1024;
inline constexpr double kLogitBiasMax = 100.0;
inline constexpr double kLogitBiasBan = -100.0;
inline constexpr double kRepetitionPenaltyMin = 0.1;
inline constexpr double kRepetitionPenaltyMax = 10.0;
// Of presence and frequency; negative ones reward.
inline constexpr double kPenaltyMax = 2.0;
inline constexpr std::int32_t kPenaltyLastTokensDefault = 64;
inline constexpr std::int32_t kPenaltyLastTokensMax = 1 << 24;

struct LogitBias {
  std::int32_t id = 0;
  double bias = 0.0;  // to kLogitBiasMax; kLogitBiasBan and less, also -infinity: never this token
};

struct PenaltyOptions {
  // 1: none; below 1 rewards. kRepetitionPenaltyMin to kRepetitionPenaltyMax.
  double repetition_penalty = 1.0;
  // 0: none. -kPenaltyMax to kPenaltyMax, both.
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  // How many of the newest tokens count; -1: all, 0: none. At most kPenaltyLastTokensMax.
  std::int32_t penalty_last_tokens = kPenaltyLastTokensDefault;
  // At most kLogitBiasCountMax, each id once.
  std::vector<LogitBias> logit_bias = {};

  absl::Status Validate() const;
  // How many tokens before the next one have an effect: 0 if there is no penalty.
  std::int64_t HistoryTokens() const;
};

class SamplerPenalties {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit SamplerPenalties(PenaltyOptions options);

  // Whether Apply would change nothing, whatever Add was told.
  bool off() const { return history_tokens_ == 0 && options_.logit_bias.empty(); }

  // These came, the newest last.
  void Add(std::span<const std::int32_t> ids);

  // Changes `logits`, one for each id. REQUIRES: all ids that it was told are below their number.
  void Apply(std::span<float> logits) const;

 private:
  float Penalised(float logit, std::int64_t count) const;

  PenaltyOptions options_;
  std::int64_t history_tokens_;
  std::deque<std::int32_t> newest_;  // at most history_tokens_
  std::unordered_map<std::int32_t, std::int64_t> counts_;
};

}  // namespace cairn::compute
