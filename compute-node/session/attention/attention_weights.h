// AttentionWeights keeps the scores that the last tokens of a batch give to the entries of one
// layer, block by block as they are attended, and makes weights of them when all are.
//
// Memory:     4 bytes for each entry, query head and weighed token, and the weights; counted in a
//             KvMemory.
// Threading:  AddBlocks on one thread; ScoresOf and Sum for different heads, and ScoresOf for
//             different tokens, at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compute-node/model/config.h"
#include "compute-node/session/kv_memory.h"

namespace cairn::compute {

class AttentionWeights {
 public:
  // Weighs tokens [first_token, batch_tokens) of the batch. Borrows `config` and `memory`, which
  // outlive it.
  AttentionWeights(const ModelConfig& config, std::int64_t batch_tokens, std::int64_t first_token,
                   KvMemory& memory);

  std::int64_t first_token() const { return first_token_; }

  // Blocks that the KV head has so far.
  std::int64_t block_count(std::int32_t kv_head) const {
    return std::ssize(HeadAt(kv_head).entry_counts);
  }
  // Adds those of a run of entries; nobody sees them yet.
  void AddBlocks(std::int32_t kv_head, std::int64_t entry_count);
  // Room for the scores of a block: (query head from `head` on, weighed token from `token` on,
  // kAttentionBlockEntries), to the end of the group. REQUIRES: token >= first_token().
  std::span<float> ScoresOf(std::int64_t head, std::int64_t token, std::int64_t block);

  // The state of a query head's token in the softmax over everything, see attention.h.
  using StateOf = std::function<std::span<const float>(std::int64_t head, std::int64_t token)>;
  // The weights of a KV head as AttendedEntries has them, once.
  std::vector<float> Sum(std::int32_t kv_head, const StateOf& state_of);

 private:
  struct Head {
    std::vector<float> scores;  // (block, query head of the group, weighed token, entry)
    std::vector<std::int64_t> entry_counts;  // of the blocks
    KvMemoryCharge charge;
  };

  std::int64_t weighed_count() const { return batch_tokens_ - first_token_; }
  std::int64_t BlockFloats() const;
  Head& HeadAt(std::int64_t kv_head) { return heads_[static_cast<std::size_t>(kv_head)]; }
  const Head& HeadAt(std::int64_t kv_head) const {
    return heads_[static_cast<std::size_t>(kv_head)];
  }

  const ModelConfig& config_;
  const std::int64_t batch_tokens_;
  const std::int64_t first_token_;
  KvMemory& memory_;
  std::vector<Head> heads_;  // by KV head
};

}  // namespace cairn::compute
