#include "compute-node/service/turn_request.h"

#include <algorithm>
#include <random>
#include <string>

namespace cairn::compute {
namespace {

std::uint64_t RandomSeed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// proto3 has no other default.
double OneIfNotSet(float value) { return value == 0 ? 1.0 : static_cast<double>(value); }

absl::Status ReadPenalties(const v1::Sampling& sampling, std::int64_t vocab_size,
                           PenaltyOptions& options) {
  options.repetition_penalty = OneIfNotSet(sampling.repetition_penalty());
  options.presence_penalty = static_cast<double>(sampling.presence_penalty());
  options.frequency_penalty = static_cast<double>(sampling.frequency_penalty());
  if (sampling.penalty_last_tokens() != 0) {
    options.penalty_last_tokens = sampling.penalty_last_tokens();
  }
  if (sampling.logit_bias_size() > kLogitBiasCountMax) {
    return InvalidArgument("sampling.logit_bias has {} tokens: at most {} are allowed",
                           sampling.logit_bias_size(), kLogitBiasCountMax);
  }
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    if (bias.id() < 0 || bias.id() >= vocab_size) {
      return InvalidArgument("sampling.logit_bias has token {}: ids are 0 to {}", bias.id(),
                             vocab_size - 1);
    }
    options.logit_bias.push_back({bias.id(), static_cast<double>(bias.bias())});
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::Sampling& sampling, std::int64_t vocab_size,
                          SamplerOptions& options) {
  if (!(sampling.temperature() >= 0 && sampling.temperature() <= 10)) {
    return InvalidArgument("sampling.temperature is {}: it must be 0 to 10",
                           sampling.temperature());
  }
  options.temperature = sampling.temperature();
  options.top_k = sampling.top_k();
  options.top_p = OneIfNotSet(sampling.top_p());
  options.min_p = static_cast<double>(sampling.min_p());
  options.typical_p = OneIfNotSet(sampling.typical_p());
  options.seed = sampling.seed() != 0 ? sampling.seed() : RandomSeed();
  CAIRN_RETURN_IF_ERROR(ReadPenalties(sampling, vocab_size, options.penalties));
  return Annotate(options.Validate(), "sampling");
}

absl::Status ReadLogProbabilities(const v1::GenerateRequest& request, TurnRequest& turn) {
  const std::int32_t count = request.top_logprob_count();
  if (count < 0 || count > kTopLogProbabilitiesMax) {
    return InvalidArgument("top_logprob_count is {}: it must be 0 to {}", count,
                           kTopLogProbabilitiesMax);
  }
  if (count > 0 && !request.logprobs()) {
    return InvalidArgument("top_logprob_count is {}, but logprobs is not set: set it too", count);
  }
  turn.log_probabilities = request.logprobs();
  turn.top_log_probability_count = count;
  return absl::OkStatus();
}

absl::Status ReadStop(const v1::GenerateRequest& request, std::int64_t vocab_size,
                      TurnRequest& turn) {
  if (request.stop_size() > kStopTextsMax) {
    return InvalidArgument("stop has {} texts: at most {} are allowed", request.stop_size(),
                           kStopTextsMax);
  }
  for (const std::string& text : request.stop()) {
    if (text.empty() || std::ssize(text) > kStopTextBytesMax) {
      return InvalidArgument("a stop text has {} bytes: it must have 1 to {}", text.size(),
                             kStopTextBytesMax);
    }
    turn.stop.push_back(text);
  }
  if (request.stop_token_ids_size() > kStopTokensMax) {
    return InvalidArgument("stop_token_ids has {} tokens: at most {} are allowed",
                           request.stop_token_ids_size(), kStopTokensMax);
  }
  for (const std::int32_t id : request.stop_token_ids()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("stop_token_ids has {}: ids are 0 to {}", id, vocab_size - 1);
    }
    turn.stop_tokens.push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTurnOptions(const v1::GenerateRequest& request, std::int64_t vocab_size,
                             TurnRequest& turn) {
  turn.ignore_end = request.ignore_eos();
  turn.tokens_max = request.tokens_max() == 0 ? kTokensMaxDefault
                                              : std::max<std::int64_t>(request.tokens_max(), 0);
  if (request.prefill_tokens_max() < 0) {
    return InvalidArgument("prefill_tokens_max is {}: it must be at least 1, or 0 for all",
                           request.prefill_tokens_max());
  }
  turn.prefill_tokens_max = request.prefill_tokens_max();
  turn.keep_random_state = request.sampling().seed() == 0;
  CAIRN_RETURN_IF_ERROR(ReadSampling(request.sampling(), vocab_size, turn.sampling));
  CAIRN_RETURN_IF_ERROR(ReadLogProbabilities(request, turn));
  return ReadStop(request, vocab_size, turn);
}

PolicyRequest ReadRetrieval(const v1::Retrieval& retrieval) {
  PolicyRequest request;
  if (!retrieval.policy().empty()) request.name = retrieval.policy();
  const auto read = [](auto value, auto& to) {
    if (value != 0) to = value;
  };
  read(retrieval.select_percent(), request.select_percent);
  read(retrieval.select_tokens_min(), request.select_tokens_min);
  read(retrieval.select_tokens_max(), request.select_tokens_max);
  read(retrieval.cluster_target_entries(), request.cluster_target_entries);
  read(retrieval.seed(), request.seed);
  if (retrieval.has_estimate_percent()) request.estimate_percent = retrieval.estimate_percent();
  if (retrieval.has_select_ahead()) request.select_ahead = retrieval.select_ahead();
  return request;
}

absl::Status ReadTokens(const v1::TokenIds& tokens, std::int64_t vocab_size,
                        std::vector<std::int32_t>& prompt) {
  for (const std::int32_t id : tokens.ids()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("tokens.ids has {}: ids are 0 to {}", id, vocab_size - 1);
    }
  }
  prompt.assign(tokens.ids().begin(), tokens.ids().end());
  return absl::OkStatus();
}

}  // namespace cairn::compute
