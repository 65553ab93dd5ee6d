// Reading ahead: parts that a Prefetch names, and those of a hinted layer's hottest clusters, are
// brought into the cache while the device has nothing better to do. Only speed depends on it: what
// finds no room, fails, or comes too late is left out without a word, and the fetch that wants it
// reads it itself.
//
// A part waits in the session's own queue until the device is less than half busy; then its read
// starts at once, in class kPrefetch. So a fetch that wants a part has two cases: the part is
// queued still, and the fetch reads it (its turn in the queue finds it in the cache); or the read
// has started, and the fetch waits for it as for any other read. There is nothing to promote.
#include <algorithm>
#include <chrono>
#include <limits>

#include "kv-node/engine/attached_session.h"
#include "kv-node/engine/checkpoint_job.h"
#include "kv-node/engine/wanted_part.h"

namespace cairn::kv {
namespace {

// Of reads that have started: of one session, and of all together. What a fetch may have to wait
// for at a slow device (emmc: 250 MB/s) is some 4 ms.
constexpr std::int64_t kPrefetchInFlightBytesMax = std::int64_t{512} << 10;
constexpr std::int64_t kPrefetchInFlightBytesMaxOfAll = std::int64_t{1} << 20;

}  // namespace

struct AttachedSession::PrefetchJob {
  bool staged = false;
  std::int32_t layer = 0;
  std::vector<WantedPart> parts;
};

void AttachedSession::ApplyHint(RequestId request_id, const HintOperation& hint) {
  if (!context_.follows_hints()) return;
  if (const auto* prefetch = std::get_if<Prefetch>(&hint)) {
    QueuePrefetch(request_id, *prefetch);
  } else if (const auto* cancel = std::get_if<Cancel>(&hint)) {
    prefetches_.Cancel(cancel->request_id);
  } else {
    StageLayer(std::get<LayerHint>(hint).layer);
  }
}

// While the layer before the hinted one is computed. What is staged comes as far as the time until
// the next hint lets it; the layer that is done makes room for it, because in the order of layers
// it is needed last.
void AttachedSession::StageLayer(std::int32_t layer) {
  const std::int32_t layer_count = row_.layout.layer_count;
  if (layer < 0 || layer >= layer_count) return;
  prefetches_.DropStaged();
  const std::int64_t budget = stage_budget_.OnHint(context_.now, fetch_read_bytes_,
                                                   context_.options.device_bytes_per_second);
  std::int64_t bytes = 0;
  for (const ClusterRef& ref : hot_clusters_.Of(layer, kStageShareMin)) {
    if (budget - bytes < kPageBytes) break;
    bytes += QueueMissing({RequestId(), /*staged=*/true, {layer, ref.head, ref.cluster_id}, {}, 0},
                          budget - bytes);
  }
  if (layer_count < 3 || bytes <= context_.cache->arena().free_bytes()) return;
  context_.cache->Release(id_, (layer + layer_count - 2) % layer_count);
}

void AttachedSession::QueuePrefetch(RequestId request_id, const Prefetch& op) {
  if (op.layer < 0 || op.layer >= row_.layout.layer_count) return;
  for (const ClusterRef& ref : op.clusters) {
    QueueMissing({request_id, /*staged=*/false, {op.layer, ref.head, ref.cluster_id}, {}, 0},
                 std::numeric_limits<std::int64_t>::max());
  }
}

std::int64_t AttachedSession::QueueMissing(QueuedPrefetch prefetch, std::int64_t bytes_max) {
  const std::int64_t entry_bytes = state_->EntryBytes(prefetch.key);
  std::int64_t bytes = 0;
  for (Visible<StoredPart>& visible : state_->StoredPartsOf(prefetch.key)) {
    const WantedPart wanted = Want(std::move(visible), entry_bytes);
    if (context_.cache->Find(wanted.first_page, wanted.page_count) != nullptr) continue;
    prefetch.part_id = wanted.part.id;
    prefetch.bytes = wanted.page_count * kPageBytes;
    if (prefetch.bytes > bytes_max - bytes) break;
    if (prefetches_.Add(prefetch)) {
      bytes += prefetch.bytes;
    } else {
      ++context_.prefetch_dropped_count;
    }
  }
  return bytes;
}

std::int64_t AttachedSession::PrefetchRoomBytes() const {
  return std::min(kPrefetchInFlightBytesMax - prefetch_in_flight_bytes_,
                  kPrefetchInFlightBytesMaxOfAll - context_.prefetch_in_flight_bytes);
}

void AttachedSession::StartPrefetches() {
  if (stopped_ || failed_) return;
  while (!prefetches_.empty()) {
    const std::int64_t request_count_max =
        std::max(1, context_.io->queue_depth() / 2) - context_.io->in_flight_count();
    const std::int64_t bytes_max = PrefetchRoomBytes();
    if (request_count_max <= 0 || bytes_max < prefetches_.front().bytes) return;
    ReadPrefetched(TakePrefetches(bytes_max, request_count_max), bytes_max);
  }
}

// Several at a time, so that neighbours come in one request.
std::shared_ptr<AttachedSession::PrefetchJob> AttachedSession::TakePrefetches(
    std::int64_t bytes_max, std::int64_t part_count_max) {
  auto job = std::make_shared<PrefetchJob>();
  job->staged = prefetches_.front().staged;
  job->layer = prefetches_.front().key.layer;
  while (!prefetches_.empty() && std::ssize(job->parts) < part_count_max) {
    const QueuedPrefetch next = prefetches_.front();
    if (next.staged != job->staged || next.key.layer != job->layer || next.bytes > bytes_max) break;
    const std::int64_t entry_bytes = state_->EntryBytes(next.key);
    for (Visible<StoredPart>& visible : state_->StoredPartsOf(next.key)) {
      if (visible.part.id != next.part_id) continue;
      WantedPart wanted = Want(std::move(visible), entry_bytes);
      // A fetch may have brought it meanwhile, or it has grown.
      if (context_.cache->Find(wanted.first_page, wanted.page_count) != nullptr) break;
      if (wanted.page_count * kPageBytes <= bytes_max) {
        bytes_max -= wanted.page_count * kPageBytes;
        Hold(wanted);
        job->parts.push_back(std::move(wanted));
      } else {
        ++context_.prefetch_dropped_count;
      }
      break;
    }
    prefetches_.PopFront();
  }
  return job;
}

void AttachedSession::ReadPrefetched(const std::shared_ptr<PrefetchJob>& job,
                                     std::int64_t bytes_max) {
  std::vector<WantedPart*> parts;
  for (WantedPart& wanted : job->parts) {
    parts.push_back(&wanted);
    bytes_max -= wanted.page_count * kPageBytes;
  }
  const std::int64_t hole_bytes_max = std::min(bytes_max, PageIo::kHoleBytesMax);
  std::vector<FetchRun> runs =
      MergeRuns(std::move(parts), context_.io->merge_limits(), hole_bytes_max);
  while (!runs.empty()) {
    FetchRun run = std::move(runs.back());
    runs.pop_back();
    const PageIndex end(run.first_page.value() + run.page_count);
    // What is being written would have to come in pieces, and its slot would be forgotten.
    const bool being_written = context_.io->AnyBeingWritten(run.first_page, end);
    const SlotRef slot = being_written ? nullptr
                                       : context_.cache->Load(id_, run.first_page, run.page_count,
                                                              LoadCause::kReadAhead);
    if (slot != nullptr) {
      ReadPrefetchedRun(job, std::move(run), slot);
    } else if (run.parts.size() > 1) {
      SplitRun(std::move(run), runs);
    } else {
      ++context_.prefetch_dropped_count;
      // Without room for this one there is none for those that are less urgent.
      if (!being_written) context_.prefetch_dropped_count += prefetches_.Clear();
    }
  }
}

void AttachedSession::ReadPrefetchedRun(const std::shared_ptr<PrefetchJob>& job, FetchRun run,
                                        const SlotRef& slot) {
  const std::int64_t bytes = run.page_count * kPageBytes;
  prefetch_in_flight_bytes_ += bytes;
  context_.prefetch_in_flight_bytes += bytes;
  context_.io->NoteHoles(run.hole_page_count);
  const PageIndex first_page = run.first_page;
  context_.io->ReadRun(first_page, slot->block().bytes(),
                       job->staged ? ReadCause::kStage : ReadCause::kPrefetch,
                       [this, job, run = std::move(run), slot, bytes,
                        io = HoldIo()](const std::set<PageIndex>& failed) {
                         prefetch_in_flight_bytes_ -= bytes;
                         context_.prefetch_in_flight_bytes -= bytes;
                         FinishPrefetchedRun(*job, run, slot, failed.empty());
                       });
}

void AttachedSession::FinishPrefetchedRun(const PrefetchJob& job, const FetchRun& run,
                                          const SlotRef& slot, bool ok) {
  // Rule 5: reads of an ended epoch are dropped unchecked.
  if (stopped_) ok = false;
  if (ok) {
    ClearHoles(run, slot->block().bytes());
    for (WantedPart* wanted : run.parts) {
      wanted->pages = slot->At(wanted->first_page);
      // A damaged part is not served from here: the fetch that wants it reads it again and says so.
      if (!IsIntact(context_.store_id, *wanted)) continue;
      slot->SetChecked(wanted->part.id, wanted->count);
      SlotCache::NoteReadAhead(*slot, wanted->part.id, wanted->count * wanted->entry_bytes);
      context_.cache->NoteUse(*slot, id_, job.layer);
    }
  }
  context_.cache->Loaded(slot, ok);
}

}  // namespace cairn::kv
