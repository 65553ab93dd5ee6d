// BlockAttention attends one layer's batch to entries that come piece by piece, in a fixed order of
// blocks: stored clusters first, then the entries in memory. It splits query rows over the thread
// pool; the result does not depend on how.
//
// Rows: the states of query head h lie together, token by token, so that a call covers many tokens
// of one head (prefill) or all heads of a group (one token).
//
// Threading:  one layer at a time; REQUIRES that nothing else uses the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/kv/kv_format.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/session/attention/attention_scratch.h"
#include "compute-node/session/attention/attention_weights.h"

namespace cairn::compute {

// Entries of one KV head in the order in which they are attended, wherever they lie. Attention
// blocks are counted from the first one.
struct EntryRun {
  std::int32_t head = 0;
  std::vector<const std::byte*> entries;
};

// Loads the means of so many clusters of a KV head as one block, and how many entries each stands
// for. Called from the pool's threads.
using LoadMeansOf = std::function<void(std::int32_t kv_head, std::span<const ClusterId> clusters,
                                       KvBlock& block, std::span<float> counts)>;

class BlockAttention {
 public:
  // Borrows all; they outlive it.
  BlockAttention(const ModelConfig& config, KvFormat format, ThreadPool& pool);

  // `weights`: null, or what is to keep the scores of entries, not of means. REQUIRES: the batch
  // fits the scratch; all live until Finish.
  void Start(const AttentionBatch& batch, AttentionScratch& scratch, AttentionWeights* weights);
  // All entries are visible to all rows. Several runs of one head are attended in their order.
  void AttendAll(std::span<const EntryRun> runs);
  // Clusters by their means, `clusters` for each KV head, visible to the batch's only token.
  void AttendMeans(std::span<const std::vector<ClusterId>> clusters, const LoadMeansOf& load);
  // One run for each head; its entry i has position first_position + i and is visible to rows from
  // that position on. Calls the batch's `between` from time to time.
  void AttendCausal(std::span<const EntryRun> runs, std::int64_t first_position);
  // Writes the batch's output, and answers weights by KV head, of an attention that keeps scores.
  std::vector<std::vector<float>> Finish();

 private:
  // What one call of the pool's loop works on: query heads [first_head, first_head + head_count) of
  // a KV head, tokens [first_token, first_token + token_count) of the batch.
  struct Task {
    std::int32_t kv_head;
    std::int64_t first_head;
    std::int64_t head_count;
    std::int64_t first_token;
    std::int64_t token_count;
  };

  Task TaskAt(std::int64_t index) const;
  void AttendOne(const Task& task, const KvBlock& block,
                 std::span<const std::int32_t> visible_counts, std::int64_t number);
  // Keeps the scores of the block, the KV head's `number`-th of the layer.
  void ScoreOne(const Task& task, const KvBlock& block,
                std::span<const std::int32_t> visible_counts, std::int64_t number);
  // Numbers the blocks that the runs will be cut into.
  void NumberBlocks(std::span<const EntryRun> runs);
  // Attends entries [first, end) of the run.
  void AttendCausalTask(const Task& task, const EntryRun& run, std::int64_t first_position,
                        std::int64_t first, std::int64_t end);

  const ModelConfig& config_;
  const KvFormat format_;
  ThreadPool& pool_;
  const float scale_;
  const AttentionBatch* batch_ = nullptr;
  AttentionScratch* scratch_ = nullptr;
  AttentionWeights* weights_ = nullptr;
  std::vector<std::int64_t> first_blocks_;  // by KV head: the number of the next block
  std::int64_t head_splits_ = 1;            // tasks that share the heads of a group
  std::int64_t token_blocks_ = 1;           // tasks that share the tokens
};

}  // namespace cairn::compute
