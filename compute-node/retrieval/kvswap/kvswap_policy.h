// KvSwapPolicy retrieves groups of consecutive tokens of all KV heads together, ranked by small
// keys in memory ("KVSwap", section 3): what is on flash is written once, in the order of the text,
// and one read brings all heads of a group.
//
// - Small keys (key_basis.h) are made as tokens leave the window, and stored as the groups' index
//   rows: a conversation that is opened again reads them, and no keys. Its basis is learned from
//   the first tokens that are at least kBasisTokensMin at once, and belongs to the conversation.
// - A step's attention mass of each token is estimated: a softmax for each KV head, of the sum of
//   its queries, added up over the heads; a group is worth its best token. Best first, until what
//   the step attends is SelectedTokens. The group of the sinks and the window count.
// - Queries are foreseen one layer ahead (PolicyTraits::selects_ahead; section 3.3 of the paper).
// - The newest tokens are in the window, which is the paper's rolling buffer; groups of the last
//   steps are kept by the reader (session/reading/kept_clusters.h), which is its reuse buffer.
//
// Groups without small keys, because there is no basis yet or a row was lost, are read by the next
// steps, which make them from what was read.
//
// Threading:  as RetrievalPolicy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/clustering/sequence_clusters.h"
#include "compute-node/retrieval/kvswap/key_basis.h"
#include "compute-node/retrieval/kvswap/small_keys.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

class KvSwapPolicy : public BasicPolicy, public PagedIndex {
 public:
  // REQUIRES: options.Validate() is OK. Whether the shape of its small keys can be stored is said
  // by RestoreState: a conversation that is there has its own.
  // `name` is a literal.
  explicit KvSwapPolicy(const PolicyOptions& options, std::string_view name = "kvswap");

  // The small keys of a layout: as many axes as a joint key has numbers, or as the bases' place in
  // a stored state has room for; the better half in 2 bits, the others in 1. Axes that differ
  // little matter more than exact numbers: fewer axes of more bits answer worse
  // (docs/benchmarks.md, "Small keys").
  static KeyCodeShape ShapeOf(const EntryLayout& layout);
  const KeyCodeShape& shape() const { return shape_; }
  // Of the small keys of a conversation whose stored state this is; nullopt: of another policy.
  static std::optional<KeyCodeShape> StoredShape(std::int32_t version, std::string_view state);
  std::int64_t group_entries() const { return clusters_.cluster_entries(); }

  PagedIndex* paged_index() final { return this; }
  std::int64_t WindowTokens(std::int64_t token_count) const override;
  std::vector<FetchSlice> Select(const SelectionInput& input) const override;
  StoreActions Store(const LeavingEntries& leaving) override;
  std::vector<ClusterSplit> Adapt(std::int32_t layer,
                                  std::span<const LoadedCluster> clusters) override;
  std::int64_t memory_bytes() const override;
  std::int64_t token_memory_bytes() const override {
    return options_.layout.layer_count * shape_.RowBytes();
  }
  std::vector<std::int64_t> NextClusterIds() const override { return clusters_.NextClusterIds(); }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;

  std::vector<IndexRow> TakeChangedRows(std::int32_t layer) override;
  void ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) override;
  absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                            const std::vector<ClusterInfo>* clusters, ThreadPool& pool) override;
  // All of the index is in memory, always.
  bool IndexIsLoaded(std::int32_t /*layer*/) const override { return true; }
  bool StoreReadsIndex(const LeavingEntries& /*leaving*/) const override { return false; }
  std::int64_t LoadIndex(std::int32_t /*layer*/, std::span<const IndexRecords> /*records*/,
                         ThreadPool& /*pool*/) override {
    return 0;
  }
  void FlagUnknown(std::int32_t /*layer*/) override {}
  void UnloadIndex(std::int32_t /*layer*/) override {}
  std::int64_t IndexBytes(std::int32_t /*layer*/) const override { return 0; }
  std::int64_t ClusterBytes(std::int32_t layer) const override;

 private:
  struct Group {
    bool coded = false;    // all of its tokens have small keys
    bool changed = false;  // the next checkpoint stores its row
  };
  struct Layer {
    explicit Layer(const KeyCodeShape& shape) : keys(shape) {}

    std::optional<KeyBasis> basis;
    SmallKeys keys;  // of all positions that have left the window
    std::vector<Group> groups;
  };

  Layer& LayerAt(std::int32_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const Layer& LayerAt(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  std::int64_t joint_dim() const {
    return std::int64_t{options_.layout.head_count} * options_.layout.head_dim;
  }
  // As of a conversation of this shape without tokens.
  void Clear(const KeyCodeShape& shape);
  // Of what SaveState gives.
  std::int64_t StateBytesMax(const KeyCodeShape& shape) const;
  // Tokens that a group has, of so many.
  std::int64_t TokensOf(std::int64_t group, std::int64_t stored_token_count) const;
  // Forgets small keys from a token on, and makes room up to it.
  void Resize(Layer& layer, std::int64_t token_count) const;
  // The groups that a step of so many tokens attends, ascending.
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int64_t budget) const;
  // What each group is worth to the queries.
  std::vector<float> GroupMasses(const SelectionInput& input) const;
  // Joint keys of tokens that leave together: (token, KV head, head_dim).
  std::vector<float> JointKeys(const LeavingEntries& leaving) const;
  void LearnFrom(std::span<const float> joint_keys, std::int64_t first_position,
                 Layer& layer) const;
  // Gives small keys to tokens whose joint keys these are. REQUIRES: the layer has a basis.
  void Encode(std::span<const float> joint_keys, std::int64_t first_position, ThreadPool* pool,
              Layer& layer) const;
  // Whether small keys of that shape, in groups of so many entries, can be stored.
  absl::Status CheckShape(const KeyCodeShape& shape, std::int64_t entries) const;
  absl::Status CheckRecord(std::int32_t layer, std::int64_t group, const IndexRecord& record) const;

  const PolicyOptions options_;
  KeyCodeShape shape_;  // the conversation's
  SequenceClusters clusters_;
  std::vector<Layer> layers_;
  mutable ScoreScratch scratch_;
};

}  // namespace cairn::compute
