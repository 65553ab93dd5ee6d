#include "compute-node/retrieval/eviction/attention_profile.h"

#include <algorithm>
#include <utility>

#include "compute-node/retrieval/selection_options.h"

namespace cairn::compute {
namespace {

// One more than count: the newest token may be computed again, without what it looked at.
constexpr std::int64_t kRowsMax = kProfileTokens + 1;

// The best entries behind the sinks, which every step attends.
std::vector<WeighedEntry> BestEntries(std::span<const std::int64_t> positions,
                                      std::span<const float> weights) {
  std::vector<WeighedEntry> best;
  best.reserve(positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const float weight = CleanWeight(weights[i]);
    if (positions[i] < kSinkTokens || weight == 0) continue;
    best.push_back({static_cast<std::int32_t>(positions[i]), weight});
  }
  if (std::ssize(best) > kProfileEntries) {
    std::nth_element(best.begin(), best.begin() + kProfileEntries, best.end(),
                     [](const WeighedEntry& a, const WeighedEntry& b) {
                       return a.weight != b.weight ? a.weight > b.weight : a.position > b.position;
                     });
    best.resize(kProfileEntries);
    std::sort(best.begin(), best.end(),
              [](const WeighedEntry& a, const WeighedEntry& b) { return a.position < b.position; });
  }
  best.shrink_to_fit();
  return best;
}

}  // namespace

void AttentionProfile::AddRow(std::int64_t token, std::span<const std::int64_t> positions,
                              std::span<const float> weights) {
  if (std::ssize(rows_) == kRowsMax) rows_.pop_front();
  rows_.push_back({token, BestEntries(positions, weights)});
}

void AttentionProfile::TakeStep(std::int64_t position, const AttendedEntries& entries) {
  Truncate(position);
  AddRow(position, PositionsOf(entries, 1), entries.weights);
}

std::vector<float> AttentionProfile::TakePrompt(std::int64_t first_position,
                                                std::int64_t token_count,
                                                const AttendedEntries& entries) {
  Truncate(first_position);
  const std::vector<std::int64_t> positions = PositionsOf(entries, token_count);
  std::vector<float> worths(positions.size(), 0.0F);
  const std::int64_t older = std::max<std::int64_t>(0, kProfileTokens - token_count);
  for (const WeighedEntry& entry : FusedRows(first_position, older)) {
    const auto at = std::lower_bound(positions.begin(), positions.end(), entry.position);
    if (at == positions.end() || *at != entry.position) continue;
    worths[static_cast<std::size_t>(at - positions.begin())] = entry.weight;
  }
  const std::span<const float> all = entries.weights;
  for (std::int64_t token = 0; token < token_count; ++token) {
    const std::span<const float> row =
        all.subspan(static_cast<std::size_t>(token) * positions.size(), positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) Fuse(CleanWeight(row[i]), worths[i]);
    AddRow(first_position + token, positions, row);
  }
  return pooling_ == Pooling::kYes ? Pooled(worths) : worths;
}

void AttentionProfile::Fuse(float weight, float& worth) const {
  worth = fusion_ == Fusion::kSum ? worth + weight : std::max(worth, weight);
}

std::vector<float> AttentionProfile::Of(std::span<const std::int64_t> positions,
                                        std::int64_t token_count) const {
  const std::int64_t reach = pooling_ == Pooling::kYes ? kPooledNeighbours : 0;
  const std::vector<WeighedEntry> known = Known(token_count);
  std::vector<float> worths(positions.size(), 0.0F);
  auto first = known.begin();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    while (first != known.end() && first->position < positions[i] - reach) ++first;
    for (auto at = first; at != known.end() && at->position <= positions[i] + reach; ++at) {
      worths[i] += at->weight;
    }
  }
  return worths;
}

std::vector<WeighedEntry> AttentionProfile::Known(std::int64_t token_count) const {
  return FusedRows(token_count, kProfileTokens);
}

std::vector<WeighedEntry> AttentionProfile::FusedRows(std::int64_t token_count,
                                                      std::int64_t row_count) const {
  const auto end = std::find_if(rows_.begin(), rows_.end(),
                                [&](const Row& row) { return row.token >= token_count; });
  const auto first = end - std::min<std::int64_t>(row_count, end - rows_.begin());
  std::vector<WeighedEntry> all;
  all.reserve(static_cast<std::size_t>(row_count * kProfileEntries));
  for (auto row = first; row != end; ++row) {
    all.insert(all.end(), row->entries.begin(), row->entries.end());
  }
  // Of equal positions the older token's first, so that sums do not depend on the sort.
  std::stable_sort(all.begin(), all.end(), [](const WeighedEntry& a, const WeighedEntry& b) {
    return a.position < b.position;
  });
  std::vector<WeighedEntry> fused;
  for (const WeighedEntry& entry : all) {
    if (fused.empty() || fused.back().position != entry.position) {
      fused.push_back(entry);
    } else {
      Fuse(entry.weight, fused.back().weight);
    }
  }
  return fused;
}

void AttentionProfile::Retain(std::span<const std::int64_t> /*retained*/, std::int64_t /*end*/) {}

void AttentionProfile::Truncate(std::int64_t token_count) {
  while (!rows_.empty() && rows_.back().token >= token_count) rows_.pop_back();
}

std::int64_t AttentionProfile::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Row& row : rows_) {
    bytes += static_cast<std::int64_t>(sizeof row) +
             std::ssize(row.entries) * static_cast<std::int64_t>(sizeof(WeighedEntry));
  }
  return bytes;
}

std::int64_t AttentionProfile::NumbersMax(std::int64_t /*entry_count*/) const {
  return kRowsMax * (2 + kProfileEntries);
}

void AttentionProfile::Save(std::vector<std::int64_t>& numbers) const {
  for (const Row& row : rows_) {
    numbers.push_back(row.token);
    numbers.push_back(std::ssize(row.entries));
    for (const WeighedEntry& entry : row.entries) numbers.push_back(PackWeighed(entry));
  }
}

bool AttentionProfile::Restore(std::span<const std::int64_t> numbers) {
  rows_.clear();
  while (!numbers.empty()) {
    if (numbers.size() < 2 || std::ssize(rows_) == kRowsMax) return false;
    Row row{.token = numbers[0], .entries = {}};
    const std::int64_t count = numbers[1];
    numbers = numbers.subspan(2);
    if (row.token < 0 || (!rows_.empty() && row.token <= rows_.back().token)) return false;
    if (count < 0 || count > std::min<std::int64_t>(kProfileEntries, std::ssize(numbers))) {
      return false;
    }
    WeightTable table;
    if (!table.Restore(numbers.first(static_cast<std::size_t>(count)))) return false;
    row.entries = table.entries();
    numbers = numbers.subspan(static_cast<std::size_t>(count));
    rows_.push_back(std::move(row));
  }
  return true;
}

}  // namespace cairn::compute
