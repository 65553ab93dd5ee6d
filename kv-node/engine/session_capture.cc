// What a checkpoint's batch holds: the rows of the open segment that changed since the last cut,
// its allocation records and its token ids, as they are at the cut (rule 8).
#include <algorithm>

#include "kv-node/engine/allocation.h"
#include "kv-node/engine/checkpoint_job.h"

namespace cairn::kv {

void AttachedSession::CaptureRows(CheckpointJob& job) {
  const SegmentRows& open = state_->open();
  const SessionState::Dirty dirty = state_->TakeDirty();
  for (const ClusterKey& key : dirty.parts) {
    std::string row_key = ClusterRowKey(open.id, key, ClusterRowKind::kParts);
    const std::vector<Part> parts = open.parts.Find(key);
    if (parts.empty()) {
      job.batch.Delete(Family::kClusters, std::move(row_key));
    } else {
      job.batch.Put(Family::kClusters, std::move(row_key),
                    EncodeParts(parts, state_->EntryBytes(key)));
    }
  }
  for (const ClusterKey& key : dirty.masks) {
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kMask), "");
  }
  for (const ClusterKey& key : dirty.evicted) {
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kEvicted),
                  EncodePositions(open.evicted.at(key)));
  }
  for (const std::int32_t layer : dirty.index_runs) {
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
      context_.index_row_bytes += std::ssize(index_key) + std::ssize(*value);
      job.batch.Put(Family::kIndex, std::move(index_key), std::string(*value));
    } else {
      job.batch.Delete(Family::kIndex, std::move(index_key));
    }
  }
  for (const ClusterKey& key : carried_before_) {
    if (open.carried.contains(key)) continue;
    job.batch.Delete(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kCarried));
  }
  carried_before_.clear();
  for (const auto& [key, parts] : open.carried) {
    job.batch.Put(Family::kClusters, ClusterRowKey(open.id, key, ClusterRowKind::kCarried),
                  EncodeParts(parts, state_->EntryBytes(key)));
  }
}

void AttachedSession::CaptureLinks(CheckpointJob& job) {
  const SegmentId segment = state_->open().id;
  const CoFetches::Changes changes =
      co_fetches_.TakeChanges([this](const ClusterKey& key) { return state_->Exists(key); });
  for (const ClusterKey& key : changes.gone) {
    job.batch.Delete(Family::kCoretrieval, LinkRowKey(segment, key));
  }
  for (const auto& [key, links] : changes.put) {
    job.batch.Put(Family::kCoretrieval, LinkRowKey(segment, key), EncodeLinks(links));
  }
}

ExtentSet AttachedSession::NamedLogRuns() const {
  ExtentSet named;
  for (const auto& [first, run] : state_->open().parts.log_runs()) named.insert(run.extent.get());
  for (const auto& [key, parts] : state_->open().carried) {
    for (const Part& part : parts) {
      if (IsLog(part)) named.insert(part.extent.get());
    }
  }
  return named;
}

void AttachedSession::CaptureAllocation(CheckpointJob& job) {
  const ExtentSet named_logs = NamedLogRuns();
  std::erase_if(log_extents_, [&](const ExtentRef& extent) {
    if (named_logs.contains(extent.get())) return false;
    dropped_extents_.push_back(extent);
    return true;
  });
  AllocationEdit records(regions_);
  PoolTable::Changes pools = pools_->TakeChanges();
  new_extents_.insert(new_extents_.end(), pools.named.begin(), pools.named.end());
  dropped_extents_.insert(dropped_extents_.end(), pools.released.begin(), pools.released.end());
  job.dropped = std::move(pools.dropped);
  for (const ExtentRef& extent : new_extents_) {
    records.Mark(extent->first(), extent->page_count(), true);
  }
  for (const ExtentRef& extent : dropped_extents_) {
    records.Mark(extent->first(), extent->page_count(), false);
  }
  records.PutTo(job.batch, state_->open().id);
  job.row.flash_bytes = 0;
  for (const auto& [region, bits] : regions_) {
    job.row.flash_bytes += static_cast<std::int64_t>(bits.count()) * kPageBytes;
  }
  job.named = std::exchange(new_extents_, {});
  job.released = std::exchange(dropped_extents_, {});
}

void AttachedSession::CaptureTokens(CheckpointJob& job) {
  const SegmentId segment = state_->open().id;
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
