#include "compute-node/retrieval/baselines/bound_policies.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/split_mix.h"

namespace cairn::compute {

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
