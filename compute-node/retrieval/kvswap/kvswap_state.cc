// How KvSwapPolicy's small keys and bases come from and go to what checkpoints store.
#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/kvswap/kvswap_policy.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kKvSwapVersion = 1;
// Of a group in the KV node: its row is in memory while the conversation is open.
constexpr std::int64_t kGroupOverheadBytes = 75;
// Half of a stored state, which is more than the rest of it takes.
constexpr std::int64_t kBasesBytesMax = kPolicyStateBytesMax / 2;
// Learning the axes takes time with the third power of it: two seconds a layer.
constexpr std::int64_t kJointDimMax = 1024;
constexpr std::size_t kNumberBytes = sizeof(std::int64_t);

// What comes before the numbers of the groups; the layers' bases follow behind those.
struct Header {
  KeyCodeShape shape;
  std::int64_t number_count = 0;
};

}  // namespace

KeyCodeShape KvSwapPolicy::ShapeOf(const EntryLayout& layout) {
  const std::int64_t joint_dim = std::int64_t{layout.head_count} * layout.head_dim;
  const std::int64_t runs_of_key = (joint_dim + kCodeRunAxes - 1) / kCodeRunAxes;
  const std::int64_t runs_that_fit =
      kBasesBytesMax / (layout.layer_count * joint_dim * kCodeRunAxes);
  const std::int64_t runs = std::clamp<std::int64_t>(std::min(runs_of_key, runs_that_fit), 1,
                                                     static_cast<std::int64_t>(kCodeRunsMax));
  KeyCodeShape shape = KeyCodeShape::Even(runs, 1);
  std::fill_n(shape.run_bits.begin(), (runs + 1) / 2, std::uint8_t{2});
  return shape;
}

std::int64_t KvSwapPolicy::StateBytesMax(const KeyCodeShape& shape) const {
  return static_cast<std::int64_t>(sizeof(Header)) +
         SequenceClusters::kNumbersMax * static_cast<std::int64_t>(kNumberBytes) +
         options_.layout.layer_count * (1 + KeyBasis::SavedBytes(joint_dim(), shape));
}

PutPolicyState KvSwapPolicy::SaveState() const {
  const std::vector<std::int64_t> numbers = clusters_.Numbers();
  const Header header{.shape = shape_, .number_count = std::ssize(numbers)};
  PutPolicyState saved{.version = kKvSwapVersion, .state = {}};
  saved.state.assign(reinterpret_cast<const char*>(&header), sizeof header);
  saved.state += PackNumbers(numbers);
  for (const Layer& layer : layers_) {
    saved.state.push_back(layer.basis.has_value() ? 1 : 0);
    if (layer.basis.has_value()) layer.basis->Save(saved.state);
  }
  return saved;
}

std::optional<KeyCodeShape> KvSwapPolicy::StoredShape(std::int32_t version,
                                                      std::string_view state) {
  Header header;
  if (version != kKvSwapVersion || state.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, state.data(), sizeof header);
  return header.shape.IsValid() ? std::optional(header.shape) : std::nullopt;
}

absl::Status KvSwapPolicy::RestoreState(const StoredPolicyState& stored) {
  Clear(shape_);
  const bool is_new = stored.version == 0 && stored.next_cluster_ids.empty();
  if (is_new) return CheckShape(shape_, group_entries());
  std::string_view rest = stored.state;
  const std::optional<KeyCodeShape> shape = StoredShape(stored.version, rest);
  if (!shape.has_value()) return ForeignState(traits().name, stored);
  Header header;
  std::memcpy(&header, rest.data(), sizeof header);
  rest.remove_prefix(sizeof header);
  const bool fits = header.number_count > 0 &&
                    header.number_count <= SequenceClusters::kNumbersMax &&
                    rest.size() >= static_cast<std::size_t>(header.number_count) * kNumberBytes;
  if (!fits) return ForeignState(traits().name, stored);
  // It goes on with its own, whatever new conversations have.
  CAIRN_RETURN_IF_ERROR(CheckShape(*shape, 1));
  Clear(*shape);
  const std::size_t number_bytes = static_cast<std::size_t>(header.number_count) * kNumberBytes;
  const std::optional<std::vector<std::int64_t>> numbers =
      UnpackNumbers(rest.substr(0, number_bytes), 1, SequenceClusters::kNumbersMax);
  rest.remove_prefix(number_bytes);
  if (!numbers.has_value()) return ForeignState(traits().name, stored);
  const std::size_t basis_bytes =
      static_cast<std::size_t>(KeyBasis::SavedBytes(joint_dim(), shape_));
  for (Layer& layer : layers_) {
    if (rest.empty()) return ForeignState(traits().name, stored);
    const bool has_basis = rest.front() == 1;
    if (rest.front() != 0 && !has_basis) return ForeignState(traits().name, stored);
    rest.remove_prefix(1);
    if (!has_basis) continue;
    if (rest.size() < basis_bytes) return ForeignState(traits().name, stored);
    layer.basis = KeyBasis::Restore(rest.substr(0, basis_bytes), joint_dim(), shape_);
    if (!layer.basis.has_value()) return ForeignState(traits().name, stored);
    rest.remove_prefix(basis_bytes);
  }
  if (!rest.empty()) return ForeignState(traits().name, stored);
  CAIRN_RETURN_IF_ERROR(clusters_.Restore(stored, *numbers));
  return CheckShape(shape_, group_entries());
}

std::vector<IndexRow> KvSwapPolicy::TakeChangedRows(std::int32_t layer_index) {
  Layer& layer = LayerAt(layer_index);
  std::vector<IndexRow> rows;
  for (std::size_t group = 0; group < layer.groups.size(); ++group) {
    if (!std::exchange(layer.groups[group].changed, false)) continue;
    const auto index = static_cast<std::int64_t>(group);
    const std::int64_t tokens = TokensOf(index, layer.keys.count());
    rows.push_back({.cluster = {kAllHeads, clusters_.IdAt(index)},
                    .row = layer.keys.Row(index * group_entries(), tokens),
                    .stale = false,
                    .entry_count = tokens});
  }
  return rows;
}

void KvSwapPolicy::ReturnRows(std::int32_t layer_index, std::span<const ClusterRef> clusters) {
  Layer& layer = LayerAt(layer_index);
  const std::set<ClusterRef> returned(clusters.begin(), clusters.end());
  for (std::size_t group = 0; group < layer.groups.size(); ++group) {
    const ClusterRef ref{kAllHeads, clusters_.IdAt(static_cast<std::int64_t>(group))};
    if (!returned.contains(ref)) continue;
    layer.groups[group].changed = layer.groups[group].coded;
  }
}

absl::Status KvSwapPolicy::CheckShape(const KeyCodeShape& shape, std::int64_t entries) const {
  if (joint_dim() > kJointDimMax) {
    return InvalidArgument(
        "policy kvswap takes models whose keys have at most {} numbers in a layer: {} KV heads of "
        "{} have {}",
        kJointDimMax, options_.layout.head_count, options_.layout.head_dim, joint_dim());
  }
  if (shape.axis_count() >= joint_dim() + kCodeRunAxes) {
    return InvalidArgument(
        "small_key_bits {} are {} axes: the model's keys have {} numbers in a "
        "layer",
        shape.ToString(), shape.axis_count(), joint_dim());
  }
  if (entries * shape.RowBytes() > kIndexRowBytesMax) {
    return InvalidArgument(
        "small_key_bits {} are {} bytes a token, {} in a group of {}: it must be at most {}; set "
        "cluster_target_entries or small_key_bits lower",
        shape.ToString(), shape.RowBytes(), entries * shape.RowBytes(), entries, kIndexRowBytesMax);
  }
  if (StateBytesMax(shape) > kPolicyStateBytesMax) {
    return InvalidArgument(
        "small_key_bits {} are {} axes, which take {} bytes for {} layers of keys of {} numbers: "
        "at most {} are stored",
        shape.ToString(), shape.axis_count(), StateBytesMax(shape), options_.layout.layer_count,
        joint_dim(), kPolicyStateBytesMax);
  }
  return absl::OkStatus();
}

absl::Status KvSwapPolicy::CheckRecord(std::int32_t layer, std::int64_t group,
                                       const IndexRecord& record) const {
  const bool fits = record.cluster.head == kAllHeads && record.entry_count > 0 &&
                    record.entry_count <= group_entries() &&
                    std::ssize(record.row) >= record.entry_count * shape_.RowBytes();
  if (fits) return absl::OkStatus();
  return InvalidArgument("layer {} group {}: an index row of {} bytes for {} entries", layer, group,
                         record.row.size(), record.entry_count);
}

absl::Status KvSwapPolicy::RestoreIndex(std::int32_t layer_index,
                                        std::span<const IndexRecord> records,
                                        const std::vector<ClusterInfo>* clusters,
                                        ThreadPool& /*pool*/) {
  Layer& layer = LayerAt(layer_index);
  std::int64_t token_count = 0;
  const auto count = [&](const ClusterRef& cluster, std::int64_t entry_count) -> absl::Status {
    if (cluster.head != kAllHeads || entry_count > group_entries()) {
      return InvalidArgument("layer {}: a cluster of head {} with {} entries is no group",
                             layer_index, cluster.head, entry_count);
    }
    token_count += entry_count;
    return absl::OkStatus();
  };
  if (clusters != nullptr) {
    for (const ClusterInfo& info : *clusters) {
      CAIRN_RETURN_IF_ERROR(count(info.cluster, info.positions.count()));
    }
  } else {
    for (const IndexRecord& record : records) {
      CAIRN_RETURN_IF_ERROR(count(record.cluster, record.entry_count));
    }
  }
  layer.groups.clear();
  layer.keys.Resize(0);
  Resize(layer, token_count);
  for (std::int64_t group = 0; group < std::ssize(layer.groups); ++group) {
    const ClusterRef ref{kAllHeads, clusters_.IdAt(group)};
    const auto record = std::lower_bound(
        records.begin(), records.end(), ref,
        [](const IndexRecord& each, const ClusterRef& wanted) { return each.cluster < wanted; });
    const std::int64_t tokens = TokensOf(group, token_count);
    if (record == records.end() || record->cluster != ref || record->entry_count < tokens) {
      if (clusters != nullptr || !layer.basis.has_value()) continue;
      return InvalidArgument("layer {}: group {} of {} has no index row", layer_index, group,
                             layer.groups.size());
    }
    CAIRN_RETURN_IF_ERROR(CheckRecord(layer_index, group, *record));
    layer.keys.PutRow(group * group_entries(), tokens, record->row);
    Group& of = layer.groups[static_cast<std::size_t>(group)];
    of.coded = layer.basis.has_value();
    // The next checkpoint stores it with the count that there is now.
    of.changed = of.coded && (record->stale || record->entry_count != tokens);
  }
  return absl::OkStatus();
}

std::int64_t KvSwapPolicy::ClusterBytes(std::int32_t layer_index) const {
  const Layer& layer = LayerAt(layer_index);
  const std::int64_t basis_bytes =
      layer.basis.has_value() ? KeyBasis::SavedBytes(joint_dim(), shape_) : 0;
  return layer.keys.size_bytes() + basis_bytes + std::ssize(layer.groups) * kGroupOverheadBytes;
}

}  // namespace cairn::compute
