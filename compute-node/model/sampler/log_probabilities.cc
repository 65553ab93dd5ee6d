#include "compute-node/model/sampler/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool IsMoreLikely(const TokenLogProbability& a, const TokenLogProbability& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// The largest logits.
std::vector<TokenLogProbability> TopLogits(std::span<const float> logits, std::size_t count) {
  std::vector<TokenLogProbability> heap;  // the least likely in front
  if (count == 0) return heap;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > (heap.size() < count ? kNever : heap.front().value))) continue;
    if (heap.size() == count) {
      std::pop_heap(heap.begin(), heap.end(), IsMoreLikely);
      heap.pop_back();
    }
    heap.push_back({static_cast<std::int32_t>(i), logits[i]});
    std::push_heap(heap.begin(), heap.end(), IsMoreLikely);
  }
  std::sort_heap(heap.begin(), heap.end(), IsMoreLikely);
  return heap;
}

}  // namespace

LogProbabilities ComputeLogProbabilities(std::span<const float> logits, std::int32_t chosen,
                                         std::int32_t top_count) {
  CAIRN_CHECK(chosen >= 0 && chosen < std::ssize(logits));
  CAIRN_CHECK(top_count >= 0 && top_count <= kTopLogProbabilitiesMax);
  float largest = kNever;
  for (const float logit : logits) {
    if (logit > largest) largest = logit;
  }
  CAIRN_CHECK(std::isfinite(largest));
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) {
      sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
    }
  }
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto value = [log_sum](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  LogProbabilities result;
  result.chosen = {chosen, value(logits[static_cast<std::size_t>(chosen)])};
  result.top = TopLogits(logits, static_cast<std::size_t>(top_count));
  for (TokenLogProbability& token : result.top) token.value = value(token.value);
  return result;
}

}  // namespace cairn::compute
