#include "compute-node/session/attention/attention_weights.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "compute-node/kernels/attention.h"

namespace cairn::compute {

AttentionWeights::AttentionWeights(const ModelConfig& config, std::int64_t batch_tokens,
                                   std::int64_t first_token, KvMemory& memory)
    : config_(config),
      batch_tokens_(batch_tokens),
      first_token_(first_token),
      memory_(memory),
      heads_(static_cast<std::size_t>(config.kv_head_count)) {
  CAIRN_CHECK(first_token >= 0 && first_token < batch_tokens);
}

std::int64_t AttentionWeights::BlockFloats() const {
  return config_.group_size() * weighed_count() * kAttentionBlockEntries;
}

void AttentionWeights::AddBlocks(std::int32_t kv_head, std::int64_t entry_count) {
  Head& head = HeadAt(kv_head);
  for (; entry_count > 0; entry_count -= kAttentionBlockEntries) {
    head.entry_counts.push_back(std::min<std::int64_t>(entry_count, kAttentionBlockEntries));
  }
  const std::size_t floats = head.entry_counts.size() * static_cast<std::size_t>(BlockFloats());
  head.charge.Release();
  head.charge = KvMemoryCharge(memory_, static_cast<std::int64_t>(floats * sizeof(float)));
  head.scores.resize(floats, -std::numeric_limits<float>::infinity());
}

std::span<float> AttentionWeights::ScoresOf(std::int64_t head, std::int64_t token,
                                            std::int64_t block) {
  const std::int64_t group = config_.group_size();
  const std::int64_t row = head % group * weighed_count() + token - first_token_;
  const std::int64_t first = block * BlockFloats() + row * kAttentionBlockEntries;
  return std::span(HeadAt(head / group).scores)
      .subspan(static_cast<std::size_t>(first),
               static_cast<std::size_t>(BlockFloats() - row * kAttentionBlockEntries));
}

std::vector<float> AttentionWeights::Sum(std::int32_t kv_head, const StateOf& state_of) {
  const std::vector<std::int64_t>& counts = HeadAt(kv_head).entry_counts;
  const std::int64_t entry_count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<float> weights(static_cast<std::size_t>(weighed_count() * entry_count), 0.0F);
  const std::int64_t group = config_.group_size();
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::span<float> rest = weights;
    for (std::int64_t token = first_token_; token < batch_tokens_; ++token) {
      const std::span<const float> state = state_of(head, token);
      for (std::int64_t block = 0; block < std::ssize(counts); ++block) {
        const std::size_t count = static_cast<std::size_t>(counts[static_cast<std::size_t>(block)]);
        AddWeights(state, ScoresOf(head, token, block).first<kAttentionBlockEntries>(),
                   rest.first(count));
        rest = rest.subspan(count);
      }
    }
  }
  HeadAt(kv_head) = Head();
  return weights;
}

}  // namespace cairn::compute
