#include "compute-node/session/reading/index_stream.h"

#include <utility>
#include <vector>

#include "common/log/log.h"
#include "common/timeline/timeline.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {

void IndexStream::Request(std::int32_t layer) {
  if (layer >= layer_count_ || IsLoaded(layer) || requests_.contains(layer)) return;
  Asked& asked = requests_[layer];
  asked.charge = KvMemoryCharge(memory_, index_->IndexBytes(layer));
  asked.answer = session_.StartRead(FetchIndex{layer});
}

absl::Status IndexStream::Load(std::int32_t layer, const StopSignal& stop) {
  for (int retries_left = kTornRetriesMax; !IsLoaded(layer); --retries_left) {
    Request(layer);
    const auto asked = requests_.find(layer);
    absl::StatusOr<FetchReply> reply = WaitForFetch(session_, layer, asked->second.answer, 1, stop);
    // A wait that was stopped leaves nothing to wait for.
    const Asked taken = std::move(asked->second);
    requests_.erase(asked);
    if (!reply.ok()) return reply.status();
    // Not everybody who needs an index has a step to repeat: a checkpoint has none.
    absl::Status status = Take(layer, *reply);
    if (!status.ok() && retries_left == 0) return status;
    if (status.ok()) loaded_[layer] = KvMemoryCharge(memory_, index_->IndexBytes(layer));
  }
  for (std::int32_t ahead = 1; ahead <= kIndexLayersAhead; ++ahead) Request(layer + ahead);
  return absl::OkStatus();
}

absl::Status IndexStream::Take(std::int32_t layer, const FetchReply& reply) {
  const TimelineSpan span(TimelineKind::kCompute, "load_index", {{"layer", layer}});
  const FetchedCluster& all = reply.clusters.front();
  if (all.outcome != FetchOutcome::kFound || all.cluster != ClusterRef{kAllHeads, ClusterId(1)}) {
    return Internal("layer {}: the KV node's answer to FetchIndex is none", layer);
  }
  std::vector<IndexRecords> records;
  for (const Span& run : all.spans) {
    if (run.entry_count > 0) records.push_back({run.bytes, run.entry_count});
  }
  const std::int64_t unknown_count = index_->LoadIndex(layer, records, pool_);
  if (absl::Status status = CheckIntact(reply); !status.ok()) {
    index_->UnloadIndex(layer);
    return status;
  }
  if (unknown_count == 0) return absl::OkStatus();
  LogWarning("index rows lost session={} layer={} clusters={}: they are made again",
             session_.attachment().session_id, layer, unknown_count);
  index_->FlagUnknown(layer);
  return absl::OkStatus();
}

void IndexStream::Unload(std::int32_t layer) {
  loaded_.erase(layer);
  if (index_ != nullptr && !stays_ && index_->IndexIsLoaded(layer)) index_->UnloadIndex(layer);
}

}  // namespace cairn::compute
