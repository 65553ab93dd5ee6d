#include "compute-node/retrieval/eviction/eviction_policy.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kEvictionStateVersion = 1;

// The `count` candidates that are worth most, ascending; of equal ones the newer.
std::vector<std::int64_t> Worthiest(std::span<const std::int64_t> candidates,
                                    std::span<const float> worths, std::int64_t count) {
  if (std::ssize(candidates) <= count) return {candidates.begin(), candidates.end()};
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto end = order.begin() + count;
  std::nth_element(order.begin(), end, order.end(), [&](std::size_t a, std::size_t b) {
    return worths[a] != worths[b] ? worths[a] > worths[b] : a > b;
  });
  std::sort(order.begin(), end);
  std::vector<std::int64_t> best;
  best.reserve(static_cast<std::size_t>(count));
  std::transform(order.begin(), end, std::back_inserter(best),
                 [&](std::size_t index) { return candidates[index]; });
  return best;
}

// Takes one number from the front; false: there is none, or it is not 0 to `most`.
bool TakeNumber(std::span<const std::int64_t>& numbers, std::int64_t most, std::int64_t& taken) {
  if (numbers.empty() || numbers[0] < 0 || numbers[0] > most) return false;
  taken = numbers[0];
  numbers = numbers.subspan(1);
  return true;
}

// Positions are stored two in a number: how many, and these.
constexpr int kPositionBits = 32;
constexpr std::int64_t PairCount(std::int64_t count) { return (count + 1) / 2; }

void PackPairs(std::span<const std::int64_t> positions, std::vector<std::int64_t>& numbers) {
  numbers.push_back(std::ssize(positions));
  for (std::size_t i = 0; i < positions.size(); i += 2) {
    const std::int64_t second = i + 1 < positions.size() ? positions[i + 1] : 0;
    numbers.push_back(positions[i] << kPositionBits | second);
  }
}

// The reverse, from the front; nullopt: they are no such positions.
std::optional<std::vector<std::int64_t>> UnpackPairs(std::span<const std::int64_t>& numbers) {
  std::int64_t count = 0;
  if (!TakeNumber(numbers, 2 * std::ssize(numbers), count)) return std::nullopt;
  if (PairCount(count) > std::ssize(numbers)) return std::nullopt;
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t pair = numbers[static_cast<std::size_t>(i / 2)];
    const std::int64_t position =
        i % 2 == 0 ? pair >> kPositionBits : pair & ((std::int64_t{1} << kPositionBits) - 1);
    const std::int64_t before = positions.empty() ? kSinkTokens - 1 : positions.back();
    if (position <= before || position > kPositionMax) return std::nullopt;
    positions.push_back(position);
  }
  numbers = numbers.subspan(static_cast<std::size_t>(PairCount(count)));
  return positions;
}

}  // namespace

EvictionPolicy::EvictionPolicy(const Kind& kind, const PolicyOptions& options)
    : PagePolicy({.name = kind.name, .learns_from_prompts = true}, options),
      prompt_tokens_(kind.prompt_tokens),
      recalled_share_(kind.recalled_share),
      layers_(static_cast<std::size_t>(options.layout.layer_count)) {
  for (Layer& layer : layers_) {
    layer.heads.resize(static_cast<std::size_t>(options.layout.head_count));
    for (Head& head : layer.heads) head.worth = kind.make_worth();
  }
}

std::int64_t EvictionPolicy::WeighedTokens(std::int64_t token_count) const {
  return std::min(token_count, prompt_tokens_);
}

std::int64_t EvictionPolicy::RetainedMax(std::int64_t token_count) const {
  const std::int64_t window = SparseWindowTokens(options().selection, token_count);
  return std::max<std::int64_t>(
      0, SelectedTokens(options().selection, token_count) - window - kSinkTokens);
}

void EvictionPolicy::Decide(Head& head, std::span<const std::int64_t> candidates,
                            std::span<const float> worths, std::int64_t decided_until) const {
  head.retained = Worthiest(candidates, worths, RetainedMax(decided_until));
  head.worth->Retain(head.retained, decided_until);
}

void EvictionPolicy::TakeWeights(const WeighedLayer& weighed) {
  Layer& layer = layers_[static_cast<std::size_t>(weighed.layer)];
  CAIRN_CHECK_EQ(std::ssize(layer.heads), std::ssize(weighed.heads));
  if (weighed.token_count == 1) {
    for (std::size_t i = 0; i < layer.heads.size(); ++i) {
      layer.heads[i].worth->TakeStep(weighed.first_position, weighed.heads[i]);
    }
    return;
  }
  const std::int64_t end = weighed.first_position + weighed.token_count;
  // What stays in the window is decided when it leaves; what has left it, now.
  layer.decided_until = std::max(end - SparseWindowTokens(options().selection, end),
                                 weighed.heads.front().recent_first);
  for (std::size_t i = 0; i < layer.heads.size(); ++i) {
    Head& head = layer.heads[i];
    head.worth->Truncate(weighed.pass_first_position);
    const std::vector<float> worths =
        head.worth->TakePrompt(weighed.first_position, weighed.token_count, weighed.heads[i]);
    const std::vector<std::int64_t> positions = PositionsOf(weighed.heads[i], weighed.token_count);
    const auto at = [&](std::int64_t position) {
      return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
    };
    const std::size_t first = static_cast<std::size_t>(at(kSinkTokens));
    const std::size_t last = std::max(first, static_cast<std::size_t>(at(layer.decided_until)));
    Decide(head, std::span(positions).subspan(first, last - first),
           std::span(worths).subspan(first, last - first), layer.decided_until);
  }
}

void EvictionPolicy::Keep(const LeavingEntries& leaving) {
  Layer& layer = layers_[static_cast<std::size_t>(leaving.layer)];
  const std::int64_t end = leaving.first_position + leaving.token_count;
  const std::int64_t first = std::max({leaving.first_position, layer.decided_until, kSinkTokens});
  if (first >= end) return;
  layer.decided_until = end;
  for (Head& head : layer.heads) {
    std::vector<std::int64_t> candidates = head.retained;
    candidates.resize(head.retained.size() + static_cast<std::size_t>(end - first));
    std::iota(candidates.end() - (end - first), candidates.end(), first);
    Decide(head, candidates, head.worth->Of(candidates, kPositionMax), end);
  }
}

std::vector<std::int64_t> EvictionPolicy::RecalledPages(const EntryWorth& worth,
                                                        std::int64_t token_count, std::int64_t end,
                                                        std::int64_t count) const {
  struct Page {
    std::int64_t index = 0;
    float worth = 0;
  };
  std::vector<Page> pages;
  for (const WeighedEntry& entry : worth.Known(token_count)) {
    if (entry.position < kSinkTokens || entry.position >= end) continue;
    const std::int64_t index = entry.position / page_entries();
    if (pages.empty() || pages.back().index != index) pages.push_back({index, 0});
    pages.back().worth += entry.weight;
  }
  std::sort(pages.begin(), pages.end(), [](const Page& a, const Page& b) {
    return a.worth != b.worth ? a.worth > b.worth : a.index > b.index;
  });
  std::vector<std::int64_t> recalled;
  for (const Page& page : pages) {
    const std::int64_t first = std::max(page.index * page_entries(), kSinkTokens);
    const std::int64_t last = std::min((page.index + 1) * page_entries(), end);
    if (std::ssize(recalled) + last - first > count) break;
    for (std::int64_t position = first; position < last; ++position) recalled.push_back(position);
  }
  std::sort(recalled.begin(), recalled.end());
  return recalled;
}

std::vector<std::int64_t> EvictionPolicy::Choose(const SelectionInput& input, std::int32_t index,
                                                 std::int64_t count) const {
  const Head& head =
      layers_[static_cast<std::size_t>(input.layer)].heads[static_cast<std::size_t>(index)];
  const std::int64_t end = input.stored_token_count;
  const auto room = static_cast<std::int64_t>(recalled_share_ * static_cast<double>(count));
  std::vector<std::int64_t> chosen;
  if (room > 0) chosen = RecalledPages(*head.worth, input.first_position, end, room);
  const auto is_new = [](const std::vector<std::int64_t>& known, std::int64_t position) {
    return !std::binary_search(known.begin(), known.end(), position);
  };
  std::vector<std::int64_t> stored;
  for (const std::int64_t position : head.retained) {
    if (position < end && is_new(chosen, position)) stored.push_back(position);
  }
  const std::vector<std::int64_t> best =
      Worthiest(stored, head.worth->Of(stored, input.first_position), count - std::ssize(chosen));
  std::vector<std::int64_t> known;
  std::merge(chosen.begin(), chosen.end(), best.begin(), best.end(), std::back_inserter(known));
  chosen = known;
  // A fork may have few that were retained before it: then the newest fill the room.
  for (std::int64_t position = end - 1; std::ssize(chosen) < count; --position) {
    if (is_new(known, position)) chosen.push_back(position);
  }
  return chosen;
}

std::int64_t EvictionPolicy::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      bytes += std::ssize(head.retained) * static_cast<std::int64_t>(sizeof(std::int64_t)) +
               head.worth->memory_bytes();
    }
  }
  return bytes;
}

std::int64_t EvictionPolicy::state_bytes_max() const {
  const std::int64_t entries = options().selection.select_tokens_max + kSparseWindowTokensMax;
  std::int64_t numbers = 1 + SequenceClusters::kNumbersMax;
  for (const Layer& layer : layers_) {
    ++numbers;
    for (const Head& head : layer.heads) {
      numbers += 2 + PairCount(entries) + head.worth->NumbersMax(entries);
    }
  }
  return numbers * static_cast<std::int64_t>(sizeof(std::int64_t));
}

PutPolicyState EvictionPolicy::SaveState() const {
  const std::vector<std::int64_t> pages = clusters().Numbers();
  std::vector<std::int64_t> numbers = {std::ssize(pages)};
  numbers.insert(numbers.end(), pages.begin(), pages.end());
  for (const Layer& layer : layers_) {
    numbers.push_back(layer.decided_until);
    for (const Head& head : layer.heads) {
      PackPairs(head.retained, numbers);
      const std::size_t count_at = numbers.size();
      numbers.push_back(0);
      head.worth->Save(numbers);
      numbers[count_at] = std::ssize(numbers) - static_cast<std::int64_t>(count_at) - 1;
    }
  }
  return {.version = kEvictionStateVersion, .state = PackNumbers(numbers)};
}

void EvictionPolicy::Clear() {
  clusters().Clear();
  for (Layer& layer : layers_) {
    layer.decided_until = 0;
    for (Head& head : layer.heads) {
      head.retained.clear();
      head.worth->Truncate(0);
    }
  }
}

bool EvictionPolicy::RestoreHead(std::span<const std::int64_t>& numbers, std::int64_t decided_until,
                                 std::int64_t token_count, Head& head) {
  const std::optional<std::vector<std::int64_t>> retained = UnpackPairs(numbers);
  if (!retained.has_value()) return false;
  if (!retained->empty() && retained->back() >= decided_until) return false;
  head.retained.assign(retained->begin(),
                       std::lower_bound(retained->begin(), retained->end(), token_count));
  std::int64_t count = 0;
  if (!TakeNumber(numbers, std::ssize(numbers), count) || count > std::ssize(numbers)) return false;
  if (!head.worth->Restore(numbers.first(static_cast<std::size_t>(count)))) return false;
  numbers = numbers.subspan(static_cast<std::size_t>(count));
  head.worth->Truncate(token_count);
  return true;
}

absl::Status EvictionPolicy::RestoreState(const StoredPolicyState& stored) {
  Clear();
  if (stored.is_new()) return absl::OkStatus();
  const std::optional<std::vector<std::int64_t>> numbers = UnpackNumbers(
      stored.state, 1, state_bytes_max() / static_cast<std::int64_t>(sizeof(std::int64_t)));
  if (stored.version != kEvictionStateVersion || !numbers.has_value()) {
    return ForeignState(traits().name, stored);
  }
  std::span<const std::int64_t> rest = *numbers;
  std::int64_t page_numbers = 0;
  if (!TakeNumber(rest, SequenceClusters::kNumbersMax, page_numbers) ||
      page_numbers > std::ssize(rest)) {
    return ForeignState(traits().name, stored);
  }
  const std::span<const std::int64_t> pages = rest.first(static_cast<std::size_t>(page_numbers));
  rest = rest.subspan(pages.size());
  for (Layer& layer : layers_) {
    std::int64_t decided_until = 0;
    if (!TakeNumber(rest, stored.state_token_count, decided_until)) {
      return ForeignState(traits().name, stored);
    }
    layer.decided_until = std::min(decided_until, stored.token_count);
    for (Head& head : layer.heads) {
      if (!RestoreHead(rest, decided_until, stored.token_count, head)) {
        return ForeignState(traits().name, stored);
      }
    }
  }
  if (!rest.empty()) return ForeignState(traits().name, stored);
  return clusters().Restore(stored, pages);
}

}  // namespace cairn::compute
