// What a checkpoint's batch holds: the rows of the open segment that changed since the last cut,
// its allocation records and its token ids, as they are at the cut (rule 8).
#include <algorithm>

#include "common/base/fail_point.h"
#include "kv-node/engine/checkpoint/checkpointer.h"

namespace cairn::kv {

void Checkpointer::CaptureRows(Job& job) {
  const SegmentRows& open = state_.open();
  const SessionState::Dirty dirty = state_.TakeDirty();
  for (const ClusterKey& key : dirty.parts) {
    std::string row_key = ClusterRowKey(open.id, key, ClusterRowKind::kParts);
    const std::vector<Part> parts = open.parts.Find(key);
    if (parts.empty()) {
      job.batch.Delete(Family::kClusters, std::move(row_key));
    } else {
      job.batch.Put(Family::kClusters, std::move(row_key),
                    EncodeParts(parts, state_.EntryBytes(key)));
    }
  }
  for (const ClusterKey& key : dirty.masks) {
    if (FailPoint("masks are not stored")) continue;
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kMask), "");
  }
  for (const ClusterKey& key : dirty.evicted) {
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kEvicted),
                  EncodePositions(open.evicted.at(key)));
  }
  for (const std::int32_t layer : dirty.index_runs) {
    if (FailPoint("rows that a new index run has stay beside it")) continue;
    job.batch.DeletePrefix(Family::kIndex, SegmentLayerPrefix(open.id, layer));
    const auto run = open.index_runs.find(layer);
    if (run == open.index_runs.end()) {
      job.batch.Delete(Family::kRuns, IndexRunKey(open.id, layer));
    } else {
      job.batch.Put(Family::kRuns, IndexRunKey(open.id, layer), EncodeIndexRun(run->second));
    }
  }
  for (const ClusterKey& key : dirty.index) {
    const std::optional<std::string_view> value = open.index.Find(key);
    std::string index_key = IndexRowKey(open.id, key);
    if (value) {
      context_.counts.index_row_bytes += std::ssize(index_key) + std::ssize(*value);
      job.batch.Put(Family::kIndex, std::move(index_key), std::string(*value));
    } else {
      job.batch.Delete(Family::kIndex, std::move(index_key));
    }
  }
  for (const ClusterKey& key : dirty.carried) {
    if (open.carried.contains(key)) continue;
    job.batch.Delete(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kCarried));
  }
  for (const auto& [key, parts] : open.carried) {
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kCarried),
                  EncodeParts(parts, state_.EntryBytes(key)));
  }
}

void Checkpointer::CaptureLinks(Job& job) {
  const SegmentId segment = state_.open().id;
  const CoFetches::Changes changes =
      co_fetches_.TakeChanges([this](const ClusterKey& key) { return state_.Exists(key); });
  for (const ClusterKey& key : changes.gone) {
    job.batch.Delete(Family::kCoretrieval, LinkRowKey(segment, key));
  }
  for (const auto& [key, links] : changes.put) {
    if (FailPoint("neighbours are not stored")) continue;
    job.batch.Put(Family::kCoretrieval, LinkRowKey(segment, key), EncodeLinks(links));
  }
}

void Checkpointer::CaptureAllocation(Job& job) {
  PoolTable::Changes pools = placer_.pools().TakeChanges();
  SegmentSpace::Cut cut = space_.TakeCut(state_.open(), pools, job.batch);
  job.row.flash_bytes = cut.flash_bytes;
  job.named = std::move(cut.named);
  if (FailPoint("log runs are free at the cut (rule 17)")) {
    for (const ExtentRef& extent : cut.released) extent->set_committed(false);
    cut.released.clear();
  }
  job.released = std::move(cut.released);
  job.dropped = std::move(pools.dropped);
}

void Checkpointer::CaptureTokens(Job& job) {
  const SegmentId segment = state_.open().id;
  tail_tokens_.resize(static_cast<std::size_t>(job.op.token_ids_start - tail_start_));
  tail_tokens_.insert(tail_tokens_.end(), job.op.token_ids.begin(), job.op.token_ids.end());
  while (!tail_tokens_.empty()) {
    const std::int64_t block = tail_start_ / kTokenBlockCount;
    const std::int64_t room = (block + 1) * kTokenBlockCount - tail_start_;
    const std::int64_t count = std::min(room, static_cast<std::int64_t>(tail_tokens_.size()));
    const auto end = tail_tokens_.begin() + static_cast<std::ptrdiff_t>(count);
    job.batch.Put(Family::kSegments, SegmentTokensKey(segment, block),
                  EncodeTokens({tail_tokens_.begin(), end}));
    if (count < room) break;
    tail_tokens_.erase(tail_tokens_.begin(), end);
    tail_start_ += count;
  }
}

}  // namespace cairn::kv
