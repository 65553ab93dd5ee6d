// EntryStore knows where each entry of a conversation is: the newest in the window, those that wait
// for a cluster held in memory, all others in clusters of the KV node. It moves entries from one
// place to the next as the policy says, writes what a checkpoint needs, and reads it back.
//
// Every layer keeps its own count of what has left the window, so that a prompt is stored layer by
// layer.
//
// Threading:  one thread.
// Errors:     DATA_LOSS when the KV node answers what was not stored; what the session and the
//             policy answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/policy.h"
#include "compute-node/retrieval/policy_choice.h"
#include "compute-node/session/entries/held_entries.h"
#include "compute-node/session/entries/stored_policy.h"
#include "compute-node/session/entries/window.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/options.h"
#include "compute-node/session/reading/cluster_heads.h"
#include "compute-node/session/reading/index_stream.h"
#include "compute-node/session/reading/stored_index.h"

namespace cairn::compute {

// Entries' bytes in one Append: a larger message only delays the fetches behind it.
inline constexpr std::int64_t kAppendBytesMax = std::int64_t{1} << 20;

// A layer's entries of a pass in progress: (head, token), from first_position on.
struct ChunkEntries {
  const std::byte* data = nullptr;
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
  std::span<const float> queries{};  // (token, query head, head_dim)
};

// Whether a policy looks at values beside keys.
enum class WithValues : bool { kNo, kYes };

// Appends the keys and, with kYes, the values of a cluster's entries, as the rows of floats that a
// policy looks at: of each entry those of each of the cluster's heads, head_dim numbers each.
void AppendRows(std::span<const std::byte* const> entries, const EntryLayout& layout,
                const ClusterHeads& heads, WithValues with_values, std::vector<float>& keys,
                std::vector<float>& values);

// What becomes of the open segment at a checkpoint.
enum class CheckpointEnd { kOpen, kSealed };

class EntryStore {
 public:
  // Borrows all but `choice`, which `policy` was made from; they outlive it.
  EntryStore(const SessionOptions& options, ThreadPool& pool, KvSession& session,
             RetrievalPolicy& policy, const PolicyChoice& choice, KvMemory& memory);

  IndexStream& index() { return index_; }
  Window& window() { return window_; }
  const HeldEntries& held() const { return held_; }
  // Positions below it have left the window.
  std::int64_t stored_count(std::int32_t layer) const {
    return stored_counts_[static_cast<std::size_t>(layer)];
  }

  // See compute::KeptClusterBytes. A policy without an index has few clusters.
  std::int64_t KeptClusterBytes(std::int32_t layer) const {
    const std::int64_t bytes = paged_index_ == nullptr ? 0 : paged_index_->ClusterBytes(layer);
    return compute::KeptClusterBytes(options_, layout_, bytes);
  }

  // Where the window of a conversation of so many tokens begins, at the latest.
  std::int64_t WindowStartAt(std::int64_t token_count) const;

  // Goes to what the session's last checkpoint stored, for the policy too, of which `stored` is
  // what the checkpoint has; nullopt: it is read. Fills `random_state`.
  absl::Status Restore(std::optional<StoredPolicy> stored, std::string& random_state);
  // Of the last Restore: waiting for index rows, and making the policy's index of them.
  std::chrono::nanoseconds index_time() const { return index_time_; }

  // Between two passes: adapts the clusters that the last one loaded, then stores what has left
  // the window of a conversation of `token_count` tokens. Idempotent. `loaded` is by layer and is
  // emptied.
  absl::Status Settle(std::int64_t token_count, std::vector<std::vector<LoadedCluster>>& loaded,
                      const StopSignal& stop);

  // Between two passes, behind a prompt of several chunks: lets the policy cluster anew, and
  // answers whether it did. REQUIRES: nothing is left to settle.
  absl::StatusOr<bool> Regroup(const StopSignal& stop);

  // In a pass, when a layer is done: stores its entries below `stored_until`, in the window or in
  // the chunk, and keeps the chunk's others in the window.
  absl::Status StoreLayer(std::int32_t layer, const ChunkEntries& chunk, std::int64_t stored_until,
                          const StopSignal& stop);

  // Sends what a checkpoint of `token_count` tokens needs; `seals` are stored with it.
  absl::Status StageCheckpoint(std::int64_t token_count, const PromptSeals& seals);
  // It is acknowledged. Behind one that seals, the open segment has no records yet.
  void CheckpointDone(CheckpointEnd end);

 private:
  // Counts what the policy's index takes by now.
  void ChargeIndex();
  std::size_t RowOf(std::int32_t layer, std::int32_t head) const {
    return ClusterRow(layout_, layer, head);
  }
  // One head's entry of a position that has not left the window.
  const std::byte* RecentEntry(std::int32_t layer, std::int32_t head, std::int64_t position,
                               const ChunkEntries& chunk) const;
  // Appends a position's entry as clusters of `head` have it. REQUIRES: the position has not left
  // the window, or is held for such a cluster.
  void AppendEntry(std::int32_t layer, std::int32_t head, std::int64_t position,
                   const ChunkEntries& chunk, std::string& out) const;
  // Fills the rows that the policy looks at; both live as long as `leaving` does.
  void FillRows(const ChunkEntries& chunk, LeavingEntries& leaving, std::vector<float>& keys,
                std::vector<float>& values) const;
  bool NeedsIndex(std::int32_t layer, const ChunkEntries& chunk, std::int64_t stored_until) const;
  StoreActions AskPolicy(std::int32_t layer, const ChunkEntries& chunk, std::int64_t stored_until,
                         ThreadPool* pool);
  absl::Status Send(std::int32_t layer, const ChunkEntries& chunk, std::int64_t stored_until,
                    const StoreActions& actions);
  void AddHeldKeys(std::int32_t layer, LoadedCluster& loaded) const;
  // Of layers [first, end): see Settle. They are adapted at the same time.
  absl::Status SettleLayers(std::int32_t first, std::int32_t end, std::int64_t token_count,
                            std::vector<std::vector<LoadedCluster>>& loaded,
                            const StopSignal& stop);
  bool IndexIsLoaded() const;
  absl::Status SendSplits(std::int32_t layer, std::span<const ClusterSplit> splits);
  absl::Status SendCarried(std::int32_t layer, std::int64_t token_count);
  absl::Status SendIndexRows(std::int32_t layer);
  absl::Status SendRows(std::int32_t layer, std::vector<IndexRow> rows);
  CarriedEntries Carry(std::int32_t layer, const ClusterRef& buffer,
                       const Positions& positions) const;

  // What a checkpoint has of one layer, on its way.
  struct LayerReads {
    std::future<absl::StatusOr<ReadReply>> carried;
    StoredIndex::Answer index{};  // only of a policy that has one
  };

  absl::Status RestorePolicy(std::optional<StoredPolicy> stored, std::string& random_state);
  absl::Status RestoreLayer(std::int32_t layer, LayerReads reads, StoredIndex& index);
  absl::Status RestoreWindow(std::int32_t layer, const CarriedReply& reply);
  absl::Status RestoreCarried(std::int32_t layer, const CarriedEntries& carried,
                              std::int64_t& window_first);
  bool IsBuffer(std::int32_t layer, const CarriedEntries& carried) const;
  absl::Status RestoreHeld(std::int32_t layer, const CarriedReply& reply);
  absl::Status RestoreIndex(std::int32_t layer, const CarriedReply& reply,
                            StoredIndex::Answer answer, StoredIndex& index);
  absl::Status MakeIndex(std::int32_t layer, std::span<const IndexRecord> records,
                         const CarriedReply& reply);
  absl::Status RebuildFromKeys(std::int32_t layer);
  // Adds what is held, for these clusters and for others.
  void AddHeld(std::int32_t layer, std::vector<LoadedCluster>& loaded) const;
  absl::StatusOr<std::vector<LoadedCluster>> Load(std::int32_t layer,
                                                  std::span<const ClusterRef> clusters,
                                                  std::span<const std::int64_t> entry_counts,
                                                  const StopSignal& stop);
  absl::StatusOr<bool> RegroupLayer(std::int32_t layer, const StopSignal& stop);
  // Counts the entries of a cluster for each of its heads. False: there is no such head.
  bool CountEntries(std::int32_t cluster_head, std::int64_t entry_count,
                    std::vector<std::int64_t>& counts) const;
  // Counts those that are carried for clusters, likewise.
  bool CountHeld(const CarriedReply& reply, std::vector<std::int64_t>& counts) const;
  // Whether each head has as many as have left the layer's window.
  bool IsAllStored(std::int32_t layer, std::span<const std::int64_t> counts) const;
  // Whether the records' entries and those in memory are all that the session has.
  bool IsComplete(std::int32_t layer, std::span<const IndexRecord> records,
                  const CarriedReply& reply) const;

  const SessionOptions& options_;
  const EntryLayout layout_;
  const std::int64_t entry_bytes_;
  ThreadPool& pool_;
  KvSession& session_;
  const PolicyTraits traits_;
  ClusterKeeper& keeper_;
  PagedIndex* const paged_index_;  // null: the policy has none
  const PolicyChoice choice_;
  KvMemory& memory_;
  Window window_;
  IndexStream index_;
  KvMemoryCharge window_charge_;
  KvMemoryCharge index_charge_;
  std::int64_t index_bytes_ = 0;
  std::chrono::nanoseconds index_time_{0};
  HeldEntries held_;
  std::vector<std::int64_t> stored_counts_;  // by layer
  std::vector<Positions> recorded_;          // by ClusterRow: carried with a record already
  std::vector<Positions> staged_;            // the same, once the checkpoint is acknowledged
};

}  // namespace cairn::compute
