// Which clusters a step of DynaKvPolicy attends by their means (Chen et al., "RetroInfer", section
// 4.2, calls them the estimation zone): of those that are not read the best ones.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {

std::vector<std::vector<ClusterId>> DynaKvPolicy::Estimate(const SelectionInput& input,
                                                           std::span<const FetchSlice> plan) const {
  if (!traits().needs_values || input.token_count > 1) return {};
  std::vector<std::vector<ClusterId>> read(static_cast<std::size_t>(options_.layout.head_count));
  for (const FetchSlice& slice : plan) {
    for (const PlannedCluster& planned : slice.clusters) {
      read[static_cast<std::size_t>(planned.cluster.head)].push_back(planned.cluster.cluster_id);
    }
  }
  std::vector<std::vector<ClusterId>> estimated(read.size());
  ForEachHead(input.pool, options_.layout.head_count, [&](std::int32_t head) {
    const std::size_t at = static_cast<std::size_t>(head);
    std::sort(read[at].begin(), read[at].end());
    estimated[at] = EstimateHead(input, head, read[at]);
  });
  return estimated;
}

// `read`: ascending.
std::vector<ClusterId> DynaKvPolicy::EstimateHead(const SelectionInput& input,
                                                  std::int32_t head_number,
                                                  std::span<const ClusterId> read) const {
  const Head& head = heads_[HeadOf(input.layer, head_number)];
  std::vector<std::size_t> slots;
  slots.reserve(head.index.slot_count());
  std::size_t next_read = 0;
  for (std::size_t slot = 0; slot < head.index.slot_count(); ++slot) {
    if (!head.index.alive(slot)) continue;
    while (next_read < read.size() && read[next_read] < head.index.id(slot)) ++next_read;
    if (next_read < read.size() && read[next_read] == head.index.id(slot)) continue;
    slots.push_back(slot);
  }
  const double share =
      std::ceil(static_cast<double>(slots.size()) * options_.selection.estimate_percent / 100);
  const std::size_t wanted = std::min(slots.size(), static_cast<std::size_t>(share));
  if (wanted < slots.size()) {
    std::vector<float> query =
        QuerySum(input.queries, options_.layout.head_count, dim(), head_number);
    head.metric.StretchQuery(query);
    std::vector<float> scores(head.index.slot_count());
    head.index.Score(query, 0, scores);
    const auto better = [&scores](std::size_t a, std::size_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    std::nth_element(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(wanted),
                     slots.end(), better);
    slots.resize(wanted);
    std::sort(slots.begin(), slots.end());
  }
  std::vector<ClusterId> ids;
  ids.reserve(slots.size());
  for (const std::size_t slot : slots) ids.push_back(head.index.id(slot));
  return ids;
}

void DynaKvPolicy::LoadMeans(std::int32_t layer, std::int32_t head_number,
                             std::span<const ClusterId> clusters, KvBlock& block,
                             std::span<float> counts) const {
  const Head& head = heads_[HeadOf(layer, head_number)];
  head.index.LoadMeans(clusters, block, counts);
  head.metric.UnstretchColumns(
      std::span(block.keys).first(static_cast<std::size_t>(dim() * kAttentionBlockEntries)),
      kAttentionBlockEntries);
}

}  // namespace cairn::compute
