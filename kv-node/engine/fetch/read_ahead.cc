#include "kv-node/engine/fetch/read_ahead.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "kv-node/engine/fetch/wanted_part.h"

namespace cairn::kv {
namespace {

// Of reads that have started: of one session, and of all together. What a fetch may have to wait
// for at a slow device (emmc: 250 MB/s) is some 4 ms.
constexpr std::int64_t kPrefetchInFlightBytesMax = std::int64_t{512} << 10;
constexpr std::int64_t kPrefetchInFlightBytesMaxOfAll = std::int64_t{1} << 20;

}  // namespace

struct ReadAhead::Job {
  bool staged = false;
  std::int32_t layer = 0;
  std::vector<WantedPart> parts;
};

ReadAhead::ReadAhead(SessionHost& host, std::int32_t layer_count)
    : host_(host),
      context_(host.context()),
      state_(host.state()),
      layer_count_(layer_count),
      hot_clusters_(layer_count),
      stage_budget_(context_.options.layer_time_max) {}

void ReadAhead::NoteFetch(const Fetch& op) {
  if (context_.follows_hints()) hot_clusters_.Note(op.layer, op.clusters);
}

void ReadAhead::Apply(RequestId request_id, const HintOperation& hint,
                      std::int64_t fetch_read_bytes) {
  if (!context_.follows_hints()) return;
  if (const auto* prefetch = std::get_if<Prefetch>(&hint)) {
    Queue(request_id, *prefetch);
  } else if (const auto* cancel = std::get_if<Cancel>(&hint)) {
    prefetches_.Cancel(cancel->request_id);
  } else {
    StageLayer(std::get<LayerHint>(hint).layer, fetch_read_bytes);
  }
}

// While the layer before the hinted one is computed. What is staged comes as far as the time until
// the next hint lets it; the layer that is done makes room for it, because in the order of layers
// it is needed last.
void ReadAhead::StageLayer(std::int32_t layer, std::int64_t fetch_read_bytes) {
  if (layer < 0 || layer >= layer_count_) return;
  prefetches_.DropStaged();
  const std::int64_t budget = stage_budget_.OnHint(context_.now, fetch_read_bytes,
                                                   context_.options.device_bytes_per_second);
  std::int64_t bytes = 0;
  for (const ClusterRef& ref : hot_clusters_.Of(layer, kStageShareMin)) {
    if (budget - bytes < kPageBytes) break;
    bytes += QueueMissing({RequestId(), /*staged=*/true, {layer, ref.head, ref.cluster_id}, {}, 0},
                          budget - bytes);
  }
  if (layer_count_ < 3 || bytes <= context_.cache->arena().free_bytes()) return;
  context_.cache->Release(host_.id(), (layer + layer_count_ - 2) % layer_count_);
}

void ReadAhead::Queue(RequestId request_id, const Prefetch& op) {
  if (op.layer < 0 || op.layer >= layer_count_) return;
  for (const ClusterRef& ref : op.clusters) {
    QueueMissing({request_id, /*staged=*/false, {op.layer, ref.head, ref.cluster_id}, {}, 0},
                 std::numeric_limits<std::int64_t>::max());
  }
}

std::int64_t ReadAhead::QueueMissing(QueuedPrefetch prefetch, std::int64_t bytes_max) {
  const std::int64_t entry_bytes = state_.EntryBytes(prefetch.key);
  std::int64_t bytes = 0;
  for (Visible<StoredPart>& visible : state_.StoredPartsOf(prefetch.key)) {
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

std::int64_t ReadAhead::RoomBytes() const {
  return std::min(kPrefetchInFlightBytesMax - in_flight_bytes_,
                  kPrefetchInFlightBytesMaxOfAll - context_.prefetch_in_flight_bytes);
}

void ReadAhead::Start() {
  if (host_.ends()) return;
  while (!prefetches_.empty()) {
    const std::int64_t request_count_max =
        std::max(1, context_.io->queue_depth() / 2) - context_.io->in_flight_count();
    const std::int64_t bytes_max = RoomBytes();
    if (request_count_max <= 0 || bytes_max < prefetches_.front().bytes) return;
    Read(Take(bytes_max, request_count_max), bytes_max);
  }
}

// Several at a time, so that neighbours come in one request.
std::shared_ptr<ReadAhead::Job> ReadAhead::Take(std::int64_t bytes_max,
                                                std::int64_t part_count_max) {
  auto job = std::make_shared<Job>();
  job->staged = prefetches_.front().staged;
  job->layer = prefetches_.front().key.layer;
  while (!prefetches_.empty() && std::ssize(job->parts) < part_count_max) {
    const QueuedPrefetch next = prefetches_.front();
    if (next.staged != job->staged || next.key.layer != job->layer || next.bytes > bytes_max) break;
    const std::int64_t entry_bytes = state_.EntryBytes(next.key);
    for (Visible<StoredPart>& visible : state_.StoredPartsOf(next.key)) {
      if (visible.part.id != next.part_id) continue;
      WantedPart wanted = Want(std::move(visible), entry_bytes);
      // A fetch may have brought it meanwhile, or it has grown.
      if (context_.cache->Find(wanted.first_page, wanted.page_count) != nullptr) break;
      if (wanted.page_count * kPageBytes <= bytes_max) {
        bytes_max -= wanted.page_count * kPageBytes;
        HoldPages(state_, wanted);
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

void ReadAhead::Read(const std::shared_ptr<Job>& job, std::int64_t bytes_max) {
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
    const SlotRef slot = being_written
                             ? nullptr
                             : context_.cache->Load(host_.id(), run.first_page, run.page_count,
                                                    LoadCause::kReadAhead);
    if (slot != nullptr) {
      ReadRun(job, std::move(run), slot);
    } else if (run.parts.size() > 1) {
      SplitRun(std::move(run), runs);
    } else {
      ++context_.prefetch_dropped_count;
      // Without room for this one there is none for those that are less urgent.
      if (!being_written) context_.prefetch_dropped_count += prefetches_.Clear();
    }
  }
}

void ReadAhead::ReadRun(const std::shared_ptr<Job>& job, FetchRun run, const SlotRef& slot) {
  const std::int64_t bytes = run.page_count * kPageBytes;
  in_flight_bytes_ += bytes;
  context_.prefetch_in_flight_bytes += bytes;
  context_.io->NoteHoles(run.hole_page_count);
  const PageIndex first_page = run.first_page;
  context_.io->ReadRun(first_page, slot->block().bytes(),
                       job->staged ? ReadCause::kStage : ReadCause::kPrefetch,
                       [this, job, run = std::move(run), slot, bytes,
                        io = host_.HoldIo()](const std::set<PageIndex>& failed) {
                         in_flight_bytes_ -= bytes;
                         context_.prefetch_in_flight_bytes -= bytes;
                         FinishRun(*job, run, slot, failed.empty());
                       });
}

void ReadAhead::FinishRun(const Job& job, const FetchRun& run, const SlotRef& slot, bool ok) {
  // Rule 5: reads of an ended epoch are dropped unchecked.
  if (host_.stopped()) ok = false;
  if (ok) {
    ClearHoles(run, slot->block().bytes());
    for (WantedPart* wanted : run.parts) {
      wanted->pages = slot->At(wanted->first_page);
      // A damaged part is not served from here: the fetch that wants it reads it again and says so.
      if (!IsIntact(context_.store_id, *wanted)) continue;
      slot->SetChecked(wanted->part.id, wanted->count);
      SlotCache::NoteReadAhead(*slot, wanted->part.id, wanted->count * wanted->entry_bytes);
      context_.cache->NoteUse(*slot, host_.id(), job.layer);
    }
  }
  context_.cache->Loaded(slot, ok);
}

}  // namespace cairn::kv
