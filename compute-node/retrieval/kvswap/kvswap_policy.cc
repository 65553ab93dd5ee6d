#include "compute-node/retrieval/kvswap/kvswap_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/best_first.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kGroupEntriesMax = 64;
// A basis is learned from no sinks, which are like no other tokens.
constexpr std::int64_t kTokensToLearnFrom = kBasisTokensMin + kSinkTokens;
// Tokens that are encoded together, from a multiple of it on: whole panels, so that threads share
// no byte of them.
constexpr std::int64_t kEncodedTokens = 4 * kCodePanelRows;
// Of what a step attends beside the window, for groups that have no small keys.
constexpr std::int64_t kUncodedShare = 2;

}  // namespace

KvSwapPolicy::KvSwapPolicy(const PolicyOptions& options, std::string_view name)
    : BasicPolicy({.name = name,
                   .selects_ahead = options.selection.select_ahead,
                   .ranks_by_query_sums = true,
                   .needs_keys = true}),
      options_(options),
      clusters_({.policy = name,
                 .layout = options.layout,
                 .cluster_entries = options.selection.cluster_target_entries,
                 .cluster_entries_min = 1,
                 .cluster_entries_max = kGroupEntriesMax,
                 .of_all_heads = true}) {
  Clear(options.small_keys.IsValid() ? options.small_keys : ShapeOf(options.layout));
}

void KvSwapPolicy::Clear(const KeyCodeShape& shape) {
  shape_ = shape;
  clusters_.Clear();
  layers_.clear();
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    layers_.emplace_back(shape_);
  }
}

std::int64_t KvSwapPolicy::WindowTokens(std::int64_t token_count) const {
  return SparseWindowTokens(options_.selection, token_count);
}

std::int64_t KvSwapPolicy::TokensOf(std::int64_t group, std::int64_t stored_token_count) const {
  return std::min(group_entries(), stored_token_count - group * group_entries());
}

void KvSwapPolicy::Resize(Layer& layer, std::int64_t token_count) const {
  layer.keys.Resize(token_count);
  layer.groups.resize(
      static_cast<std::size_t>((token_count + group_entries() - 1) / group_entries()));
}

std::vector<FetchSlice> KvSwapPolicy::Select(const SelectionInput& input) const {
  const std::int64_t stored = input.stored_token_count;
  const std::int64_t budget = StoredBudget(input, options_.selection);
  const Layer& layer = LayerAt(input.layer);
  CAIRN_CHECK_EQ(layer.keys.count(), stored);
  // A step that reads everything is what a basis can be learned from.
  const bool may_adapt =
      input.token_count == 1 && (layer.basis.has_value() || stored >= kTokensToLearnFrom);
  std::vector<FetchSlice> plan;
  const auto add = [&](std::int64_t group) {
    PlannedCluster planned = clusters_.Plan(kAllHeads, group, stored);
    planned.adapt = may_adapt && !layer.groups[static_cast<std::size_t>(group)].coded;
    AddToPlan(options_, std::move(planned), plan);
  };
  if (budget == stored) {
    for (std::int64_t group = 0; group < std::ssize(layer.groups); ++group) add(group);
  } else {
    for (const std::int64_t group : Choose(input, budget)) add(group);
  }
  return plan;
}

std::vector<std::int64_t> KvSwapPolicy::Choose(const SelectionInput& input,
                                               std::int64_t budget) const {
  const Layer& layer = LayerAt(input.layer);
  const bool ranks = layer.basis.has_value();
  // What a basis is learned from is read once, however little a step may attend.
  const bool learns = !ranks && input.stored_token_count >= kTokensToLearnFrom;
  std::int64_t left = learns ? std::max(budget, kTokensToLearnFrom + group_entries()) : budget;
  const std::int64_t left_for_ranked = ranks ? left / kUncodedShare : 0;
  std::vector<std::int64_t> chosen;
  std::vector<bool> taken(layer.groups.size(), false);
  const auto take = [&](std::int64_t group) {
    const std::int64_t tokens = TokensOf(group, input.stored_token_count);
    if (tokens > left) return false;
    if (taken[static_cast<std::size_t>(group)]) return true;
    taken[static_cast<std::size_t>(group)] = true;
    chosen.push_back(group);
    left -= tokens;
    return true;
  };
  for (std::int64_t group = 0; group * group_entries() < kSinkTokens; ++group) {
    left = std::max(left, TokensOf(group, input.stored_token_count));
    take(group);
  }
  for (std::int64_t group = 0; group < std::ssize(layer.groups); ++group) {
    if (left <= left_for_ranked) break;
    if (!layer.groups[static_cast<std::size_t>(group)].coded) take(group);
  }
  if (ranks) {
    const std::vector<float> masses = GroupMasses(input);
    for (BestFirst best(masses); !best.empty();) {
      if (!take(static_cast<std::int64_t>(best.Take()))) break;
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<float> KvSwapPolicy::GroupMasses(const SelectionInput& input) const {
  const Layer& layer = LayerAt(input.layer);
  const std::int64_t head_count = options_.layout.head_count;
  const std::int64_t head_dim = options_.layout.head_dim;
  std::vector<CodedQuery> queries;
  for (std::int32_t head = 0; head < head_count; ++head) {
    const std::vector<float> sum = QuerySum(input.queries, head_count, head_dim, head);
    queries.emplace_back(shape_, layer.basis->Project(sum, head));
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  const std::span<const float> masses = layer.keys.Score(queries, scale, input.pool, scratch_);
  std::vector<float> of_groups(layer.groups.size(), 0.0F);
  const auto size = static_cast<std::size_t>(group_entries());
  for (std::size_t group = 0; group < of_groups.size(); ++group) {
    const std::span<const float> tokens =
        masses.subspan(group * size, std::min(size, masses.size() - group * size));
    // What has no small key is worth nothing, whatever its codes are.
    if (layer.groups[group].coded) {
      of_groups[group] = *std::max_element(tokens.begin(), tokens.end());
    }
  }
  return of_groups;
}

std::vector<float> KvSwapPolicy::JointKeys(const LeavingEntries& leaving) const {
  const std::int64_t head_dim = options_.layout.head_dim;
  std::vector<float> joint(leaving.keys.size());
  auto to = joint.begin();
  for (std::int64_t token = 0; token < leaving.token_count; ++token) {
    for (std::int64_t head = 0; head < options_.layout.head_count; ++head) {
      const auto from = leaving.keys.begin() + (head * leaving.token_count + token) * head_dim;
      to = std::copy(from, from + head_dim, to);
    }
  }
  return joint;
}

// From tokens evenly among those that there are.
void KvSwapPolicy::LearnFrom(std::span<const float> joint_keys, std::int64_t first_position,
                             Layer& layer) const {
  const std::int64_t dim = joint_dim();
  const std::int64_t skipped = std::max<std::int64_t>(0, kSinkTokens - first_position);
  const std::int64_t count = std::ssize(joint_keys) / dim - skipped;
  if (count < kBasisTokensMin) return;
  const std::int64_t stride = (count + kBasisTokensMax - 1) / kBasisTokensMax;
  std::vector<float> sample;
  for (std::int64_t token = 0; token < count; token += stride) {
    const auto from = joint_keys.begin() + (skipped + token) * dim;
    sample.insert(sample.end(), from, from + dim);
  }
  layer.basis = KeyBasis::Learn(sample, dim, shape_);
}

void KvSwapPolicy::Encode(std::span<const float> joint_keys, std::int64_t first_position,
                          ThreadPool* pool, Layer& layer) const {
  const std::int64_t end = first_position + std::ssize(joint_keys) / joint_dim();
  const std::int64_t first_block = first_position / kEncodedTokens;
  const auto encode = [&](std::int64_t block) {
    const std::int64_t from = std::max(first_position, (first_block + block) * kEncodedTokens);
    const std::int64_t count = std::min(end, (first_block + block + 1) * kEncodedTokens) - from;
    const auto axis_count = static_cast<std::size_t>(shape_.axis_count());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count) * axis_count);
    layer.basis->Encode(
        joint_keys.subspan(static_cast<std::size_t>((from - first_position) * joint_dim()),
                           static_cast<std::size_t>(count * joint_dim())),
        codes);
    for (std::int64_t i = 0; i < count; ++i) {
      layer.keys.Put(
          from + i, std::span(codes).subspan(static_cast<std::size_t>(i) * axis_count, axis_count));
    }
  };
  const std::int64_t block_count = (end - 1) / kEncodedTokens - first_block + 1;
  if (pool != nullptr) return pool->ParallelFor(block_count, encode);
  for (std::int64_t block = 0; block < block_count; ++block) encode(block);
}

StoreActions KvSwapPolicy::Store(const LeavingEntries& leaving) {
  Layer& layer = LayerAt(leaving.layer);
  // Those that could not be sent leave again, and others with them.
  CAIRN_CHECK(layer.keys.count() >= leaving.first_position);
  const std::int64_t end = leaving.first_position + leaving.token_count;
  Resize(layer, end);
  const std::vector<float> joint = JointKeys(leaving);
  if (!layer.basis.has_value()) LearnFrom(joint, leaving.first_position, layer);
  const std::int64_t first_group = leaving.first_position / group_entries();
  if (layer.basis.has_value()) {
    Encode(joint, leaving.first_position, leaving.pool, layer);
    for (std::int64_t group = first_group; group < std::ssize(layer.groups); ++group) {
      Group& of = layer.groups[static_cast<std::size_t>(group)];
      // One that began without small keys lacks those.
      if (group * group_entries() >= leaving.first_position) of.coded = true;
      of.changed = of.coded;
    }
  } else if (leaving.first_position % group_entries() != 0) {
    layer.groups[static_cast<std::size_t>(first_group)].coded = false;
  }
  return {.appended = clusters_.Store(leaving), .held = {}};
}

std::vector<ClusterSplit> KvSwapPolicy::Adapt(std::int32_t layer_index,
                                              std::span<const LoadedCluster> clusters) {
  Layer& layer = LayerAt(layer_index);
  if (!layer.basis.has_value()) {
    std::vector<float> joint;
    for (const LoadedCluster& loaded : clusters) {
      joint.insert(joint.end(), loaded.keys.begin(), loaded.keys.end());
    }
    LearnFrom(joint, clusters.empty() ? 0 : clusters.front().positions.first(), layer);
    if (!layer.basis.has_value()) return {};
  }
  for (const LoadedCluster& loaded : clusters) {
    CAIRN_CHECK_EQ(std::ssize(loaded.keys), loaded.positions.count() * joint_dim());
    const std::int64_t first = loaded.positions.first();
    Encode(loaded.keys, first, nullptr, layer);
    layer.groups[static_cast<std::size_t>(first / group_entries())] = {.coded = true,
                                                                       .changed = true};
  }
  return {};
}

std::int64_t KvSwapPolicy::memory_bytes() const {
  std::int64_t bytes = std::ssize(scratch_.scores) + std::ssize(scratch_.masses);
  bytes *= static_cast<std::int64_t>(sizeof(float));
  for (const Layer& layer : layers_) {
    bytes += layer.keys.size_bytes() + std::ssize(layer.groups);
    if (layer.basis.has_value()) bytes += KeyBasis::SavedBytes(joint_dim(), shape_);
  }
  return bytes;
}

}  // namespace cairn::compute
