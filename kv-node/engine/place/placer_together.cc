// Which places belong together: beside what a cluster is fetched with, and for several new clusters
// in pools that follow each other. docs/kv-node.md, "Several new clusters at once", has the
// picture.
#include <algorithm>
#include <utility>

#include "common/base/fail_point.h"
#include "kv-node/engine/place/placement_order.h"
#include "kv-node/engine/place/placer.h"

namespace cairn::kv {
namespace {

// New clusters of a (layer, head) whose places are chosen at once, and how many of them get pools
// that follow each other without a gap: flash must have so long a range of free pages.
constexpr std::size_t kPlannedTogetherMax = 512;
constexpr std::size_t kPlannedRunMax = 64;

}  // namespace

std::span<const ClusterLink> Placer::LinksOf(const ClusterKey& key) const {
  if (!context_.options.co_retrieval) return {};
  return co_fetches_.LinksOf(key);
}

std::vector<PoolTable::Place> Placer::RelatedPlaces(const ClusterKey& key) const {
  std::vector<PoolTable::Place> places;
  for (const ClusterLink& link : LinksOf(key)) {
    for (const Part& part : state_.open().parts.Find({key.layer, key.head, link.cluster})) {
      if (part.extent->kind() != ExtentKind::kPool) continue;
      for (const PoolTable::Place& place : pools_->PlacesBeside(part)) places.push_back(place);
    }
  }
  return places;
}

bool Placer::HasPoolPart(const ClusterKey& key) const {
  const std::vector<StoredPart> parts = state_.open().parts.rows().Find(key);
  return std::any_of(parts.begin(), parts.end(),
                     [](const StoredPart& part) { return part.kind == ExtentKind::kPool; });
}

bool Placer::WantsPlan(const ClusterKey& key) const {
  return context_.options.pool_sharing && !planned_.contains(key) && !placing_.contains(key) &&
         !LinksOf(key).empty() && !HasPoolPart(key);
}

std::vector<ClusterKey> Placer::PlanTogether(LayerHead owner,
                                             const std::vector<ClusterKey>& candidates) {
  const std::int64_t entry_bytes = state_.EntryBytes({owner.first, owner.second, ClusterId(0)});
  std::map<ClusterId, std::int64_t> bytes_of;
  for (const ClusterKey& key : candidates) {
    if (LayerHead(key.layer, key.head) != owner || !WantsPlan(key)) continue;
    const std::int64_t bytes = UnplacedCount(key) * entry_bytes;
    if (bytes == 0 || bytes > kPartBytesMax / 2) continue;  // two share a pool
    bytes_of[key.cluster_id] = bytes;
    if (bytes_of.size() == kPlannedTogetherMax) break;
  }
  std::map<std::pair<ClusterId, ClusterId>, std::int64_t> counts;  // both ways
  for (const auto& [id, bytes] : bytes_of) {
    for (const ClusterLink& link : LinksOf({owner.first, owner.second, id})) {
      if (bytes_of.contains(link.cluster)) counts[std::minmax(id, link.cluster)] += link.count;
    }
  }
  std::vector<ClusterPair> links;
  links.reserve(counts.size());
  for (const auto& [pair, count] : counts) links.push_back({pair.first, pair.second, count});
  const std::vector<ClusterId> order = OrderByLinks(std::move(links));
  for (std::span<const ClusterId> left(order); !left.empty();) {
    const std::span<const ClusterId> run = left.first(std::min(left.size(), kPlannedRunMax));
    KeepPools(owner, run, bytes_of);
    left = left.subspan(run.size());
  }
  std::vector<ClusterKey> keys;
  keys.reserve(order.size());
  for (const ClusterId id : order) keys.push_back({owner.first, owner.second, id});
  return keys;
}

// Pools one after the other; the clusters of a pair lie on both sides of a seam:
//   [      1] [2    3] [4    5] [6      ]
void Placer::KeepPools(LayerHead owner, std::span<const ClusterId> run,
                       const std::map<ClusterId, std::int64_t>& bytes_of) {
  const std::int64_t entry_bytes = state_.layout().EntryBytes(owner.second);
  std::vector<std::int64_t> page_counts;
  std::int64_t total = 0;
  for (std::size_t i = 0; i <= run.size(); i += 2) {
    const bool edge = i == 0 || i == run.size();
    const std::int64_t bytes =
        (i == 0 ? 0 : bytes_of.at(run[i - 1])) + (i == run.size() ? 0 : bytes_of.at(run[i]));
    page_counts.push_back(PoolClassPages(
        std::min((edge ? TimesForOnePart(bytes / entry_bytes) : 2) * bytes, kPartBytesMax)));
    total += page_counts.back();
  }
  const absl::StatusOr<PageIndex> first = context_.free_map->Allocate(total);
  if (!first.ok()) return;  // each where it fits
  std::int64_t page = first->value();
  for (std::size_t pool = 0; pool < page_counts.size(); ++pool) {
    const auto extent = std::make_shared<Extent>(context_.free_map, ExtentKind::kPool,
                                                 PageIndex(page), page_counts[pool], false);
    page += page_counts[pool];
    const auto keep = [&](std::size_t i, Direction direction) {
      planned_[{owner.first, owner.second, run[i]}] = {extent, direction,
                                                       pools_->Keep(owner, extent, direction)};
    };
    if (pool > 0 && !FailPoint("pairs do not lie across a seam")) {
      keep(2 * pool - 1, Direction::kUp);
    }
    if (2 * pool < run.size()) keep(2 * pool, Direction::kDown);
  }
}

}  // namespace cairn::kv
