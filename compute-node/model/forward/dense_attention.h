// DenseAttention keeps the whole KV cache of one sequence in memory and attends all of it: the
// reference for every other way, and what `cairn model logits` uses. Blocks are cut at multiples of
// kAttentionBlockEntries positions, so the result for a token does not depend on how the sequence
// was cut into batches.
//
// Threading:  as Model::Forward: one call at a time.
// Errors:     RESOURCE_EXHAUSTED beyond `token_count_max`; INVALID_ARGUMENT when a batch does not
//             follow the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/kv/kv_format.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {

class DenseAttention : public KvAttention {
 public:
  // Borrows `pool`, which outlives it.
  DenseAttention(const ModelConfig& config, KvFormat format, std::int64_t token_count_max,
                 ThreadPool& pool);

  absl::Status Attend(const AttentionBatch& batch) override;
  // Takes a batch's keys and values and attends nothing; the queries and the output are not used.
  // For a cache that is filled without a forward pass.
  absl::Status Store(const AttentionBatch& batch);

  // Tokens held, by the layer that has fewest.
  std::int64_t token_count() const;
  // Forgets everything from `token_count` on; the sequence goes on from there.
  void Truncate(std::int64_t token_count);

 private:
  std::byte* EntryAt(std::int64_t layer, std::int64_t kv_head, std::int64_t position);
  void AttendRows(const AttentionBatch& batch, std::int64_t kv_head, std::int64_t first_token,
                  std::int64_t token_count);

  const ModelConfig config_;
  const KvFormat format_;
  const std::int64_t token_count_max_;
  const std::int64_t entry_bytes_;
  ThreadPool& pool_;
  // (layer, kv_head): entries in position order; grown as tokens come.
  std::vector<std::vector<std::byte>> heads_;
  std::vector<std::int64_t> layer_token_counts_;
};

}  // namespace cairn::compute
