#include "compute-node/retrieval/baselines/page_policy.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/split_mix.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kPageStateVersion = 1;

std::int64_t PageEntries(const EntryLayout& layout) {
  return std::clamp<std::int64_t>(kPageBytes / layout.EntryBytes(0), 1, kPageEntriesMax);
}

}  // namespace

PagePolicy::PagePolicy(const PolicyTraits& traits, const PolicyOptions& options)
    : BasicPolicy(traits),
      options_(options),
      clusters_({.policy = traits.name,
                 .layout = options.layout,
                 .cluster_entries = PageEntries(options.layout),
                 .cluster_entries_min = 1,
                 .cluster_entries_max = kPageEntriesMax}) {}

std::int64_t PagePolicy::WindowTokens(std::int64_t token_count) const {
  return SparseWindowTokens(options_.selection, token_count);
}

std::vector<FetchSlice> PagePolicy::Select(const SelectionInput& input) const {
  const std::int64_t budget = StoredBudget(input, options_.selection);
  if (budget == input.stored_token_count) return clusters_.PlanAll(options_, budget);
  std::vector<std::vector<PlannedCluster>> pages(
      static_cast<std::size_t>(options_.layout.head_count));
  ForEachHead(input.pool, options_.layout.head_count, [&](std::int32_t head) {
    pages[static_cast<std::size_t>(head)] = PagesOf(input, head, budget);
  });
  std::vector<FetchSlice> plan;
  for (std::vector<PlannedCluster>& of_head : pages) {
    for (PlannedCluster& page : of_head) AddToPlan(options_, std::move(page), plan);
  }
  return plan;
}

std::vector<PlannedCluster> PagePolicy::PagesOf(const SelectionInput& input, std::int32_t head,
                                                std::int64_t budget) const {
  const std::int64_t sinks = std::min(kSinkTokens, budget);
  std::vector<std::int64_t> chosen;
  if (budget > sinks) chosen = Choose(input, head, budget - sinks);
  CAIRN_CHECK_EQ(std::ssize(chosen), budget - sinks);
  chosen.resize(static_cast<std::size_t>(budget));
  std::iota(chosen.end() - sinks, chosen.end(), 0);
  std::sort(chosen.begin(), chosen.end());
  std::vector<PlannedCluster> pages;
  for (auto at = chosen.begin(); at != chosen.end();) {
    const std::int64_t page = *at / page_entries();
    const auto end = std::lower_bound(at, chosen.end(), (page + 1) * page_entries());
    PlannedCluster& planned =
        pages.emplace_back(clusters_.Plan(head, page, input.stored_token_count));
    if (end - at < planned.entry_count) {
      for (; at != end; ++at) {
        planned.attended.push_back(static_cast<std::int32_t>(*at - page * page_entries()));
      }
    }
    at = end;
  }
  return pages;
}

StoreActions PagePolicy::Store(const LeavingEntries& leaving) {
  Keep(leaving);
  return {.appended = clusters_.Store(leaving), .held = {}};
}

PutPolicyState PagePolicy::SaveState() const {
  return {.version = kPageStateVersion, .state = PackNumbers(clusters_.Numbers())};
}

absl::Status PagePolicy::RestoreState(const StoredPolicyState& stored) {
  clusters_.Clear();
  if (stored.is_new()) return absl::OkStatus();
  const std::optional<std::vector<std::int64_t>> numbers =
      UnpackNumbers(stored.state, 1, SequenceClusters::kNumbersMax);
  if (stored.version != kPageStateVersion || !numbers.has_value()) {
    return ForeignState(traits().name, stored);
  }
  return clusters_.Restore(stored, *numbers);
}

std::vector<std::int64_t> StreamingPolicy::Choose(const SelectionInput& input,
                                                  std::int32_t /*head*/, std::int64_t count) const {
  std::vector<std::int64_t> newest(static_cast<std::size_t>(count));
  std::iota(newest.begin(), newest.end(), input.stored_token_count - count);
  return newest;
}

std::vector<std::int64_t> RandomPolicy::Choose(const SelectionInput& input, std::int32_t head,
                                               std::int64_t count) const {
  SplitMix random({options().selection.seed, static_cast<std::uint64_t>(input.layer),
                   static_cast<std::uint64_t>(head),
                   static_cast<std::uint64_t>(input.first_position + input.token_count)});
  const std::int64_t page_count = (input.stored_token_count + page_entries() - 1) / page_entries();
  std::vector<std::int64_t> pages(static_cast<std::size_t>(page_count));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; std::ssize(chosen) < count; ++i) {
    const std::int64_t drawn = i + random.Below(page_count - i);
    std::swap(pages[static_cast<std::size_t>(i)], pages[static_cast<std::size_t>(drawn)]);
    const std::int64_t first = pages[static_cast<std::size_t>(i)] * page_entries();
    const std::int64_t end = std::min(first + page_entries(), input.stored_token_count);
    for (std::int64_t position = std::max(first, kSinkTokens);
         position < end && std::ssize(chosen) < count; ++position) {
      chosen.push_back(position);
    }
  }
  return chosen;
}

}  // namespace cairn::compute
