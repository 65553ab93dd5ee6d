#include "compute-node/retrieval/eviction/entry_worth.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// More than all votes: the weights of kProfileTokens tokens of as many query heads as there may be.
constexpr float kDecodedWorth = 65536;

constexpr int kWeightBits = 32;

auto PositionAtLeast(const std::vector<WeighedEntry>& entries, std::int64_t position) {
  return std::lower_bound(
      entries.begin(), entries.end(), position,
      [](const WeighedEntry& entry, std::int64_t wanted) { return entry.position < wanted; });
}

}  // namespace

std::int64_t PackWeighed(const WeighedEntry& entry) {
  return static_cast<std::int64_t>(std::uint64_t{static_cast<std::uint32_t>(entry.position)}
                                       << kWeightBits |
                                   std::bit_cast<std::uint32_t>(entry.weight));
}

bool UnpackWeighed(std::int64_t number, WeighedEntry& entry) {
  const auto bits = static_cast<std::uint64_t>(number);
  entry.position = static_cast<std::int32_t>(bits >> kWeightBits);
  entry.weight = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return entry.position >= 0 && entry.weight >= 0 && std::isfinite(entry.weight);
}

std::vector<std::int64_t> PositionsOf(const AttendedEntries& entries, std::int64_t token_count) {
  const std::int64_t count = std::ssize(entries.weights) / token_count;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    positions[static_cast<std::size_t>(i)] = entries.PositionOf(i);
  }
  CAIRN_CHECK(std::is_sorted(positions.begin(), positions.end()));
  CAIRN_CHECK(positions.empty() || positions.back() <= std::numeric_limits<std::int32_t>::max());
  return positions;
}

float CleanWeight(float weight) { return weight > 0 && std::isfinite(weight) ? weight : 0.0F; }

std::vector<float> ColumnSums(const AttendedEntries& entries, std::int64_t token_count) {
  const std::size_t count = entries.weights.size() / static_cast<std::size_t>(token_count);
  std::vector<float> sums(count, 0.0F);
  for (std::size_t at = 0; at < entries.weights.size(); ++at) {
    sums[at % count] += CleanWeight(entries.weights[at]);
  }
  return sums;
}

std::vector<float> Pooled(std::span<const float> sums) {
  const std::int64_t count = std::ssize(sums);
  std::vector<float> pooled(sums.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = std::max<std::int64_t>(0, i - kPooledNeighbours);
    const std::int64_t end = std::min(count, i + kPooledNeighbours + 1);
    float sum = 0;
    for (std::int64_t j = first; j < end; ++j) sum += sums[static_cast<std::size_t>(j)];
    pooled[static_cast<std::size_t>(i)] = sum / (2 * kPooledNeighbours + 1);
  }
  return pooled;
}

float WeightTable::Of(std::int64_t position) const {
  const auto found = PositionAtLeast(entries_, position);
  return found != entries_.end() && found->position == position ? found->weight : 0.0F;
}

void WeightTable::Add(std::span<const std::int64_t> positions, std::span<const float> weights) {
  std::vector<WeighedEntry> all;
  all.reserve(entries_.size() + positions.size());
  auto old = entries_.begin();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    while (old != entries_.end() && old->position < positions[i]) all.push_back(*old++);
    WeighedEntry added{static_cast<std::int32_t>(positions[i]), weights[i]};
    if (old != entries_.end() && old->position == positions[i]) added.weight += (old++)->weight;
    added.weight = std::min(added.weight, std::numeric_limits<float>::max());
    all.push_back(added);
  }
  all.insert(all.end(), old, entries_.end());
  entries_ = std::move(all);
}

void WeightTable::Retain(std::span<const std::int64_t> retained, std::int64_t end) {
  std::erase_if(entries_, [&](const WeighedEntry& entry) {
    return entry.position < end &&
           !std::binary_search(retained.begin(), retained.end(), entry.position);
  });
  entries_.shrink_to_fit();
}

void WeightTable::Truncate(std::int64_t token_count) {
  entries_.erase(PositionAtLeast(entries_, token_count), entries_.end());
  entries_.shrink_to_fit();
}

bool WeightTable::Restore(std::span<const std::int64_t> numbers) {
  entries_.clear();
  entries_.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    WeighedEntry entry;
    if (!UnpackWeighed(number, entry)) return false;
    if (!entries_.empty() && entry.position <= entries_.back().position) return false;
    entries_.push_back(entry);
  }
  return true;
}

void AccumulatedWorth::TakeStep(std::int64_t position, const AttendedEntries& entries) {
  if (newest_ >= 0 && newest_ < position) sums_.Add(newest_positions_, newest_weights_);
  newest_ = position;
  newest_positions_ = PositionsOf(entries, 1);
  newest_weights_.clear();
  newest_weights_.reserve(entries.weights.size());
  for (const float weight : entries.weights) newest_weights_.push_back(CleanWeight(weight));
}

std::vector<float> AccumulatedWorth::TakePrompt(std::int64_t first_position,
                                                std::int64_t token_count,
                                                const AttendedEntries& entries) {
  sums_ = SumsBefore(first_position);
  newest_ = -1;
  const std::vector<std::int64_t> positions = PositionsOf(entries, token_count);
  sums_.Add(positions, ColumnSums(entries, token_count));
  return Of(positions, first_position + token_count);
}

WeightTable AccumulatedWorth::SumsBefore(std::int64_t token_count) const {
  WeightTable all = sums_;
  if (newest_ >= 0 && newest_ < token_count) all.Add(newest_positions_, newest_weights_);
  return all;
}

std::vector<float> AccumulatedWorth::Of(std::span<const std::int64_t> positions,
                                        std::int64_t token_count) const {
  const WeightTable all = SumsBefore(token_count);
  std::vector<float> worths;
  worths.reserve(positions.size());
  for (const std::int64_t position : positions) worths.push_back(all.Of(position));
  return worths;
}

std::vector<WeighedEntry> AccumulatedWorth::Known(std::int64_t token_count) const {
  return SumsBefore(token_count).entries();
}

void AccumulatedWorth::Retain(std::span<const std::int64_t> retained, std::int64_t end) {
  sums_.Retain(retained, end);
}

void AccumulatedWorth::Truncate(std::int64_t token_count) {
  if (newest_ >= token_count) newest_ = -1;
  sums_.Truncate(token_count);
}

std::int64_t AccumulatedWorth::memory_bytes() const {
  return std::ssize(sums_.entries()) * static_cast<std::int64_t>(sizeof(WeighedEntry)) +
         std::ssize(newest_positions_) *
             static_cast<std::int64_t>(sizeof(std::int64_t) + sizeof(float));
}

// The newest step's apart: where its token is not stored with it, it is computed again.
void AccumulatedWorth::Save(std::vector<std::int64_t>& numbers) const {
  const std::size_t newest_count = newest_ < 0 ? 0 : newest_positions_.size();
  numbers.push_back(newest_);
  numbers.push_back(static_cast<std::int64_t>(newest_count));
  for (std::size_t i = 0; i < newest_count; ++i) {
    numbers.push_back(
        PackWeighed({static_cast<std::int32_t>(newest_positions_[i]), newest_weights_[i]}));
  }
  for (const WeighedEntry& entry : sums_.entries()) numbers.push_back(PackWeighed(entry));
}

bool AccumulatedWorth::Restore(std::span<const std::int64_t> numbers) {
  newest_ = -1;
  newest_positions_.clear();
  newest_weights_.clear();
  if (numbers.size() < 2 || numbers[0] < -1) return false;
  const std::int64_t newest = numbers[0];
  const std::int64_t newest_count = numbers[1];
  numbers = numbers.subspan(2);
  if (newest_count < 0 || newest_count > std::ssize(numbers)) return false;
  if (newest < 0 && newest_count > 0) return false;
  WeightTable of_newest;
  if (!of_newest.Restore(numbers.first(static_cast<std::size_t>(newest_count)))) return false;
  if (!sums_.Restore(numbers.subspan(static_cast<std::size_t>(newest_count)))) return false;
  newest_ = newest;
  for (const WeighedEntry& entry : of_newest.entries()) {
    newest_positions_.push_back(entry.position);
    newest_weights_.push_back(entry.weight);
  }
  return true;
}

void VotedWorth::TakeStep(std::int64_t /*position*/, const AttendedEntries& /*entries*/) {}

std::vector<float> VotedWorth::TakePrompt(std::int64_t first_position, std::int64_t token_count,
                                          const AttendedEntries& entries) {
  prompt_end_ = first_position + token_count;
  std::vector<float> votes = Pooled(ColumnSums(entries, token_count));
  votes_.Clear();
  votes_.Add(PositionsOf(entries, token_count), votes);
  return votes;
}

std::vector<float> VotedWorth::Of(std::span<const std::int64_t> positions,
                                  std::int64_t /*token_count*/) const {
  std::vector<float> worths;
  worths.reserve(positions.size());
  for (const std::int64_t position : positions) {
    worths.push_back(position < prompt_end_ ? votes_.Of(position)
                                            : kDecodedWorth + static_cast<float>(position));
  }
  return worths;
}

std::vector<WeighedEntry> VotedWorth::Known(std::int64_t /*token_count*/) const {
  return votes_.entries();
}

void VotedWorth::Retain(std::span<const std::int64_t> retained, std::int64_t end) {
  votes_.Retain(retained, end);
}

void VotedWorth::Truncate(std::int64_t token_count) {
  prompt_end_ = std::min(prompt_end_, token_count);
  votes_.Truncate(token_count);
}

std::int64_t VotedWorth::memory_bytes() const {
  return std::ssize(votes_.entries()) * static_cast<std::int64_t>(sizeof(WeighedEntry));
}

void VotedWorth::Save(std::vector<std::int64_t>& numbers) const {
  numbers.push_back(prompt_end_);
  for (const WeighedEntry& entry : votes_.entries()) numbers.push_back(PackWeighed(entry));
}

bool VotedWorth::Restore(std::span<const std::int64_t> numbers) {
  if (numbers.empty() || numbers[0] < 0) return false;
  prompt_end_ = numbers[0];
  return votes_.Restore(numbers.subspan(1));
}

}  // namespace cairn::compute
