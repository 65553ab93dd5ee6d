// Count and hash of the positions that a session shows: that each is there exactly once.
#include <algorithm>
#include <cstdint>
#include <set>
#include <span>

#include "common/base/parallel.h"
#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {
namespace {

// Mixes a position to 64 bits (the finaliser of SplitMix64), so that sums of different sets differ.
std::uint64_t Hash(std::int64_t position) {
  std::uint64_t x = static_cast<std::uint64_t>(position) + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// In a whole session the positions are 0 to their count, so that only damage is sorted: opening a
// long one sorted for a tenth of its time.
bool HasTwice(const std::vector<std::int32_t>& positions) {
  std::vector<bool> seen(positions.size());
  std::vector<std::int32_t> beyond;
  for (const std::int32_t position : positions) {
    const auto at = static_cast<std::size_t>(position);
    if (at >= seen.size()) {
      beyond.push_back(position);
    } else if (seen[at]) {
      return true;
    } else {
      seen[at] = true;
    }
  }
  std::sort(beyond.begin(), beyond.end());
  return std::adjacent_find(beyond.begin(), beyond.end()) != beyond.end();
}

void AppendTo(std::vector<std::int32_t>& out, const Positions& positions) {
  positions.ForEach([&](std::int64_t p) { out.push_back(static_cast<std::int32_t>(p)); });
}

// Fills `out` with the positions below the limit. False if they do not ascend from part to part as
// these lie in the row, in which case they may still do so in another order.
bool TakeAscending(const RowPositions& row, std::int64_t limit, std::vector<std::int32_t>& out) {
  out.clear();
  std::int64_t end = 0;
  bool ascends = true;
  row.ForEachRun([&](const Positions::Run& run) {
    ascends = ascends && run.start >= end;
    end = run.start + run.length;
    for (std::int64_t p = run.start; p < std::min(end, limit); ++p) {
      out.push_back(static_cast<std::int32_t>(p));
    }
  });
  return ascends;
}

// Those that count.
template <typename Fn>
void ForEachEvicted(const SegmentRows& rows, std::int32_t layer, Fn&& fn) {
  for (auto it = rows.evicted.lower_bound({layer, kAllHeads, ClusterId(INT64_MIN)});
       it != rows.evicted.end() && it->first.layer == layer; ++it) {
    fn(it->first, it->second.Slice(0, it->second.CountBelow(rows.limit)));
  }
}

}  // namespace

void PositionSum::Add(const Positions& positions) {
  count += positions.count();
  positions.ForEach([this](std::int64_t position) { hash += Hash(position); });
}

void PositionSum::Add(std::span<const std::int32_t> positions) {
  count += std::ssize(positions);
  for (const std::int32_t position : positions) hash += Hash(position);
}

void PositionSum::Remove(const Positions& positions) {
  count -= positions.count();
  positions.ForEach([this](std::int64_t position) { hash -= Hash(position); });
}

void SessionState::AddTo(std::vector<PositionSum>& sums, const ClusterKey& key,
                         const Positions& positions) const {
  ForEachHead(key.head, [&](std::int32_t head) { sums[SumIndex(key.layer, head)].Add(positions); });
}

absl::Status SessionState::CheckPositions(
    std::int64_t token_count, const std::map<ClusterKey, CarriedEntries>& carried) const {
  std::vector<PositionSum> sums = sums_;
  for (const auto& [key, entries] : carried) {
    AddTo(sums, key, entries.positions);
  }
  PositionSum want;
  want.Add(Positions::Range(0, token_count));
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout_.head_count; ++head) {
      const PositionSum& sum = sums[SumIndex(layer, head)];
      if (sum == want) continue;
      return FailedPrecondition(
          "checkpoint of {} tokens refused: layer {} head {} shows {} positions, and not each "
          "exactly "
          "once",
          token_count, layer, head, sum.count);
    }
  }
  return absl::OkStatus();
}

// Looking for each cluster in each segment of a chain takes three times as long as to walk through
// the rows of one, and mostly one has nearly all: what was prefilled.
absl::Status SessionState::SumStored(std::int32_t layer, std::vector<Seen>& seen) {
  const SegmentRows& largest = *std::max_element(
      chain_.begin(), chain_.end(), [](const SegmentRows& a, const SegmentRows& b) {
        return a.parts.rows().cluster_count() < b.parts.rows().cluster_count();
      });
  // Clusters of which other segments have something to say.
  std::set<ClusterKey> others;
  for (const SegmentRows& rows : chain_) {
    for (const ClusterKey& mask : rows.masks) {
      if (mask.layer == layer) others.insert(mask);
    }
    if (&rows == &largest) continue;
    rows.parts.rows().ForEachKeyOfLayer(layer, [&](const ClusterKey& key) { others.insert(key); });
  }
  absl::Status status;
  Seen positions;
  largest.parts.rows().ForEachPositionsOfLayer(layer,
                                               [&](const ClusterKey& key, const RowPositions& row) {
                                                 if (others.contains(key)) return;
                                                 if (TakeAscending(row, largest.limit, positions)) {
                                                   SumPositions(key, positions, seen);
                                                 } else {
                                                   status.Update(SumCluster(key, seen));
                                                 }
                                               });
  for (const ClusterKey& key : others) status.Update(SumCluster(key, seen));
  return status;
}

absl::Status SessionState::SumCluster(const ClusterKey& key, std::vector<Seen>& seen) {
  Seen positions;
  for (const Visible<StoredPart>& visible : StoredPartsOf(key)) {
    const Positions shown = visible.part.positions.Slice(0, visible.count);
    if (!positions.empty() && shown.first() <= positions.back()) {
      return DataLoss("layer {} head {} cluster {} holds position {} twice", key.layer, key.head,
                      key.cluster_id, shown.first());
    }
    AppendTo(positions, shown);
  }
  SumPositions(key, positions, seen);
  return absl::OkStatus();
}

void SessionState::SumPositions(const ClusterKey& key, const Seen& positions,
                                std::vector<Seen>& seen) {
  ForEachHead(key.head, [&](std::int32_t head) {
    sums_[SumIndex(key.layer, head)].Add(positions);
    Seen& of_head = seen[static_cast<std::size_t>(head)];
    of_head.insert(of_head.end(), positions.begin(), positions.end());
  });
}

absl::Status SessionState::RecomputeSums(std::int64_t thread_count) {
  std::fill(sums_.begin(), sums_.end(), PositionSum());
  return ForEachRange(
      "kv-open", layout_.layer_count, thread_count, [this](std::int64_t begin, std::int64_t end) {
        // One layer after the other takes the same memory.
        std::vector<Seen> seen(static_cast<std::size_t>(layout_.head_count));
        for (std::int64_t layer = begin; layer < end; ++layer) {
          for (Seen& of_head : seen) of_head.clear();
          CAIRN_RETURN_IF_ERROR(RecomputeSumsOf(static_cast<std::int32_t>(layer), seen));
        }
        return absl::OkStatus();
      });
}

absl::Status SessionState::RecomputeSumsOf(std::int32_t layer, std::vector<Seen>& seen) {
  CAIRN_RETURN_IF_ERROR(SumStored(layer, seen));
  for (const SegmentRows& rows : chain_) {
    ForEachEvicted(rows, layer, [&](const ClusterKey& key, const Positions& positions) {
      Seen evicted;
      AppendTo(evicted, positions);
      SumPositions(key, evicted, seen);
    });
  }
  if (!std::any_of(seen.begin(), seen.end(), HasTwice)) return absl::OkStatus();
  return DataLoss("segment {} shows a position of layer {} twice", open().id, layer);
}

bool SessionState::SumsAreRight() const {
  std::vector<PositionSum> sums(sums_.size());
  const auto add = [&](const ClusterKey& key, const Positions& positions) {
    AddTo(sums, key, positions);
  };
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    ForEachCluster(layer, [&](const ClusterKey& key) { add(key, PositionsOf(key)); });
    for (const SegmentRows& rows : chain_) {
      ForEachEvicted(rows, layer, add);
    }
  }
  return sums == sums_;
}

}  // namespace cairn::kv
