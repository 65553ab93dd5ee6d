// StoredAttention is the KvAttention of one conversation: newest entries in a window in memory, the
// others in the KV node, from where those that the policy selects stream by while a layer is
// attended. Which position is where is EntryStore's business; it keeps that true for every layer
// apart, so that a checkpoint can be taken between any two passes.
//
// A pass computes tokens [token_count, token_count + n) in one Model::Forward: StartPass, Forward,
// CommitPass. A layer's entries live in a chunk buffer until the layer is done; then those that
// leave the window are appended, so that one layer of a chunk is in memory at a time. A failed pass
// of one token leaves the conversation as it was (AbandonPass); a failed pass of many needs
// Restore.
//
// Determinism: of a policy that selects without queries attention blocks are cut at multiples of
//              kAttentionBlockEntries positions, whatever is stored where, as DenseAttention cuts
//              them: both give the same bits. Of the others blocks follow the plan, and clusters
//              change between steps only, as the tokens and the policy alone decide.
// Threading:  one thread.
// Errors:     DATA_LOSS when the KV node's answer is not what was stored; CANCELLED,
//             DEADLINE_EXCEEDED; what the session answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/retrieval/policy.h"
#include "compute-node/retrieval/weight_observer.h"
#include "compute-node/session/attention/attention_scratch.h"
#include "compute-node/session/attention/attention_weights.h"
#include "compute-node/session/attention/block_attention.h"
#include "compute-node/session/attention/foreseen_queries.h"
#include "compute-node/session/entries/entry_store.h"
#include "compute-node/session/entries/stored_policy.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/options.h"
#include "compute-node/session/reading/cluster_heads.h"
#include "compute-node/session/reading/fetch_pipeline.h"
#include "compute-node/session/reading/selected_fetch.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// Is told what a conversation's passes attended, layer by layer: for measuring what a policy finds.
// A conversation without one does nothing for it.
//
// Threading:  called on the thread that computes the pass, while the model's pool is idle.
// Ownership:  what is passed lives during the call.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // `heads` has one element for each KV head. A pass that failed and is computed again is told
  // again.
  virtual void LayerAttended(const AttentionBatch& batch,
                             std::span<const AttendedEntries> heads) = 0;
};

class StoredAttention : public KvAttention {
 public:
  // Called when a layer of a pass is done, with the number of layers done.
  using LayerDone = std::function<void(std::int32_t layer_count)>;

  // Borrows all but `choice`, which `policy` was made from; they outlive it. `observer` is told
  // what was attended; null: nobody. Starts without tokens: call Restore for what the session
  // holds.
  StoredAttention(const SessionOptions& options, const ModelConfig& config, ThreadPool& pool,
                  PassScratch& scratch, KvSession& session, RetrievalPolicy& policy,
                  const PolicyChoice& choice, KvMemory& memory, AttentionObserver* observer);

  // Goes to the session's last checkpoint: window, policy, token count. `stored` is what it has of
  // the policy; nullopt: it is read. Fills `random_state` with the stored one.
  absl::Status Restore(std::optional<StoredPolicy> stored, std::string& random_state);

  std::int64_t token_count() const { return token_count_; }

  // Stores first what has left the window. `stop` lives until the pass ends; `layer_done` may be
  // empty. REQUIRES: no pass; the scratch has room for `token_count` tokens.
  absl::Status StartPass(std::int64_t token_count, const StopSignal& stop, LayerDone layer_done);
  absl::Status Attend(const AttentionBatch& batch) override;
  Forecast WantedForecast(int layer) const override;
  void Predict(int layer, std::span<const float> queries) override;
  // REQUIRES: every layer was attended.
  void CommitPass();
  void AbandonPass();

  // Lets the policy cluster anew what a prompt of several chunks left, and answers whether it did:
  // then a checkpoint is due. REQUIRES: no pass.
  absl::StatusOr<bool> Regroup(const StopSignal& stop);

  // Sends what a checkpoint of token_count() tokens needs besides the Checkpoint itself; `seals`
  // are stored with it. The caller then sends that, and calls CheckpointDone when it is
  // acknowledged, before the next one. REQUIRES: no pass.
  absl::Status StageCheckpoint(const StopSignal& stop, const PromptSeals& seals = {});
  std::chrono::nanoseconds index_time() const { return store_.index_time(); }
  const FetchCounts& fetch_counts() const { return selected_fetch_.counts(); }
  void CheckpointDone(CheckpointEnd end = CheckpointEnd::kOpen) { store_.CheckpointDone(end); }

 private:
  // Whether the pass is a step of a policy that chooses by queries.
  bool IsSelecting() const { return pass_tokens_ == 1 && !traits_.selects_without_queries; }
  bool IsLocal() const { return pass_tokens_ > 1 && options_.local_prompts; }
  absl::Status AttendStored(const AttentionBatch& batch);
  SelectionInput InputOf(std::int32_t layer, std::span<const float> queries);
  absl::Status AttendEverything(const AttentionBatch& batch);
  absl::Status AttendSelected(const AttentionBatch& batch);
  // What the layer attends: as it was selected ahead, or now. A head whose queries are not what was
  // foreseen selects anew; that depends on the queries alone.
  std::vector<FetchSlice> PlanOf(const AttentionBatch& batch);
  std::vector<std::vector<ClusterId>> Estimate(const AttentionBatch& batch,
                                               std::span<const FetchSlice> plan);
  // Where the layer's stored entries end, less a last block that is not whole. Behind a fork from
  // before the window there is one until the window moves; it is attended with the entries in
  // memory, so that blocks keep their borders.
  std::int64_t WholeBlocksEnd(std::int32_t layer) const;
  // Moves what the slice holds of that block into the window.
  void TakePartialBlock(std::int32_t layer, ArrivedSlice& slice);
  // Entries that are attended: one run for each head, because softmax costs less for whole blocks;
  // of a slice of a policy that selects without queries one for each cluster and head.
  std::vector<EntryRun> RunsOf(const ArrivedSlice& slice) const;
  std::vector<EntryRun> NoRuns() const;  // one for each head, without entries
  std::vector<EntryRun> RunsOf(const SelectedClusters& selected) const;
  // Whether it matters what a layer attends.
  bool IsObserved() const { return observer_ != nullptr || weights_.has_value(); }
  // For those who observe: which of a cluster's entries are attended.
  void NoteFetched(const PlannedCluster& planned, const FetchedCluster& fetched,
                   std::int64_t entry_count);
  void StartObserving(const AttentionBatch& batch);
  // Ends the attention, and tells them.
  void FinishLayer(const AttentionBatch& batch);
  // Keeps the keys of clusters that the policy will adapt behind the pass.
  void KeepLoaded(std::int32_t layer, const SelectedClusters& selected);
  absl::Status StoreChunk(const AttentionBatch& batch);
  void AttendHeld(std::int32_t layer);
  void AttendRecent(const AttentionBatch& batch);
  const std::byte* EntryAt(std::int32_t layer, std::int32_t head, std::int64_t position);
  ChunkEntries Chunk() const { return {chunk_.data(), token_count_, pass_tokens_, queries_}; }

  const SessionOptions& options_;
  const EntryLayout layout_;
  const std::int64_t entry_bytes_;
  ThreadPool& pool_;
  KvSession& session_;
  const std::int64_t session_id_;
  const PolicyTraits traits_;
  const EntrySelector& selector_;
  AttentionObserver* const observer_;      // null: nobody
  WeightObserver* const weight_observer_;  // null: the policy has none
  KvMemory& memory_;
  const ModelConfig& config_;
  PassScratch& scratch_;
  BlockAttention attention_;
  FetchPipeline pipeline_;
  SelectedFetch selected_fetch_;
  EntryStore store_;

  std::int64_t token_count_ = 0;
  // Clusters to adapt, by layer: of the last pass, and of the one in progress.
  std::vector<std::vector<LoadedCluster>> loaded_;
  std::vector<std::vector<LoadedCluster>> loading_;

  // What a policy that selects ahead has selected by foreseen_.
  struct AheadPlan {
    std::int32_t layer = -1;
    std::vector<FetchSlice> slices;
  };

  // Of the pass in progress.
  std::int64_t pass_tokens_ = 0;
  AheadPlan ahead_;
  ForeseenQueries foreseen_;
  const StopSignal* stop_ = nullptr;
  LayerDone layer_done_;
  std::span<const float> queries_;
  std::vector<std::byte> chunk_;  // one layer: (head, token)
  KvMemoryCharge chunk_charge_;
  // Of one layer: what observers are told, by head, and the weights, where the policy wants them.
  std::vector<AttendedEntries> attended_;
  std::optional<AttentionWeights> weights_;
};

}  // namespace cairn::compute
