// StoredKv is the KvAttention of one conversation: newest entries in a window in memory, all others
// in the KV node, from where they stream by while a layer is attended. It knows which position is
// where and keeps that true for every layer apart, so that a checkpoint can be taken between any
// two passes.
//
// A pass computes tokens [token_count, token_count + n) in one Model::Forward: StartPass, Forward,
// CommitPass. A layer's entries live in a chunk buffer until the layer is done; then those that
// leave the window are appended, so that one layer of a chunk is in memory at a time. A failed pass
// of one token leaves the conversation as it was (AbandonPass); a failed pass of many needs
// Restore.
//
// Determinism: attention blocks are cut at multiples of kAttentionBlockEntries positions, whatever
//              is stored where, as DenseAttention cuts them: both give the same bits.
// Threading:  one thread.
// Errors:     DATA_LOSS when the KV node's answer is not what was stored; CANCELLED,
//             DEADLINE_EXCEEDED; what the session answers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward.h"
#include "compute-node/retrieval/policy.h"
#include "compute-node/session/attention_scratch.h"
#include "compute-node/session/block_attention.h"
#include "compute-node/session/fetch_pipeline.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/stop.h"
#include "compute-node/session/window.h"

namespace cairn::compute {

// Entries' bytes in one Append: a larger message only delays the fetches behind it.
inline constexpr std::int64_t kAppendBytesMax = std::int64_t{1} << 20;

class StoredKv : public KvAttention {
 public:
  struct Options {
    EntryLayout layout;
    std::int64_t window_tokens_max = kWindowTokensMax;
    int slices_in_flight_max = 3;
  };
  // Called when a layer of a pass is done, with the number of layers done.
  using LayerDone = std::function<void(std::int32_t layer_count)>;

  // Borrows all; they outlive it. Starts without tokens: call Restore for what the session holds.
  StoredKv(const Options& options, const ModelConfig& config, ThreadPool& pool,
           PassScratch& scratch, KvSession& session, RetrievalPolicy& policy, KvMemory& memory);

  // Goes to the session's last checkpoint: window, policy, token count. Fills `random_state` with
  // the stored one.
  absl::Status Restore(std::string& random_state);

  std::int64_t token_count() const { return token_count_; }

  // `stop` lives until the pass ends; `layer_done` may be empty. REQUIRES: no pass; the scratch
  // has room for `token_count` tokens.
  void StartPass(std::int64_t token_count, const StopSignal& stop, LayerDone layer_done);
  absl::Status Attend(const AttentionBatch& batch) override;
  // REQUIRES: every layer was attended.
  void CommitPass();
  void AbandonPass();

  // Sends what a checkpoint of token_count() tokens needs besides the Checkpoint itself. The caller
  // then sends that, and calls CheckpointDone when it is acknowledged, before the next one.
  // REQUIRES: no pass.
  absl::Status StageCheckpoint();
  void CheckpointDone();

 private:
  static absl::Status CheckIntact(const FetchReply& reply);
  std::size_t RowOf(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(std::int64_t{layer} * options_.layout.head_count + head);
  }
  const std::byte* EntryAt(std::int32_t layer, std::int32_t head, std::int64_t position) const;
  // Where the layer's stored entries end, less a last block that is not whole. Behind a fork from
  // before the window there is one until the window moves; it is attended with the entries in
  // memory, so that blocks keep their borders.
  std::int64_t WholeBlocksEnd(std::int32_t layer) const;
  // Moves what the slice holds of that block into the window.
  void TakePartialBlock(std::int32_t layer, ArrivedSlice& slice);
  void StoreChunk(const AttentionBatch& batch);
  void AttendRecent(const AttentionBatch& batch);
  void HintNextLayer(std::int32_t layer);
  absl::Status AppendLeaving(std::int32_t layer, std::int64_t stored_until);
  absl::Status RestoreLayer(std::int32_t layer, const CarriedReply& reply);

  const Options options_;
  const std::int64_t entry_bytes_;
  ThreadPool& pool_;
  KvSession& session_;
  RetrievalPolicy& policy_;
  KvMemory& memory_;
  PassScratch& scratch_;
  BlockAttention attention_;
  FetchPipeline pipeline_;
  Window window_;
  KvMemoryCharge window_charge_;

  std::int64_t token_count_ = 0;
  std::vector<std::int64_t> stored_counts_;  // by layer: positions below are in clusters
  std::vector<Positions> recorded_;          // by (layer, head): carried with a record already
  std::vector<Positions> staged_;            // the same, once the checkpoint is acknowledged

  // Of the pass in progress.
  std::int64_t pass_tokens_ = 0;
  const StopSignal* stop_ = nullptr;
  LayerDone layer_done_;
  std::span<const float> queries_;
  std::vector<std::byte> chunk_;  // one layer: (head, token)
  KvMemoryCharge chunk_charge_;
};

}  // namespace cairn::compute
