// Fetches. A fetch takes its parts and pending entries when it is applied; what is appended later
// is not in its answer. Each part is served from one slot of the cache or, without room there, from
// one buffer; what neither holds is read, parts that lie side by side in one request, and checked
// before it is served. A part that another read is bringing is waited for, not read twice.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/log/log.h"
#include "kv-node/engine/attached_session.h"
#include "kv-node/engine/checkpoint_job.h"
#include "kv-node/engine/wanted_part.h"

namespace cairn::kv {
namespace {

// Parts, or runs, that are worked on between two looks at the device.
constexpr std::size_t kKeepBusyEvery = 16;

// Takes what keeps the pages.
Span SpanOf(WantedPart& wanted, bool with_positions) {
  Span span;
  span.part_id = wanted.part.id;
  span.entry_count = wanted.count;
  span.direction = wanted.part.direction;
  if (with_positions) span.positions = wanted.part.positions.Slice(0, wanted.count);
  const ByteRange range = RangeOf(wanted.part, wanted.entry_bytes, 0, wanted.count);
  const std::int64_t offset = range.begin % kPageBytes;
  span.bytes = {wanted.pages + offset, static_cast<std::size_t>(range.end - range.begin)};
  span.owner = std::move(wanted.owner);
  if (wanted.slot != nullptr) {
    span.arena.granule_id = wanted.slot->block().granule->id();
    span.arena.offset_bytes = wanted.slot->OffsetInArena(span.bytes.data());
    span.arena.generation = wanted.slot->generation();
  }
  return span;
}

Span SpanOf(const PendingChunk& chunk, bool with_positions) {
  Span span;
  span.entry_count = chunk.positions.count();
  if (with_positions) span.positions = chunk.positions;
  span.bytes = std::as_bytes(std::span(chunk.bytes->data(), chunk.bytes->size()));
  span.owner = chunk.bytes;
  return span;
}

// What is lost for good counts more than what may be read another time.
void Worsen(FetchOutcome& outcome, WantedPart::Outcome part) {
  if (part == WantedPart::Outcome::kLost) outcome = FetchOutcome::kLost;
  if (part == WantedPart::Outcome::kUnreadable && outcome != FetchOutcome::kLost) {
    outcome = FetchOutcome::kUnreadable;
  }
}

}  // namespace

struct AttachedSession::FetchJob {
  struct Cluster {
    ClusterKey key;
    std::size_t part_count = 0;
    std::vector<PendingChunk> pending;
  };
  RequestId request_id;
  std::int32_t layer = 0;
  bool with_positions = false;
  bool of_index = false;  // `clusters` are of segments, entries are records
  bool only_visible = false;
  std::vector<Cluster> clusters;
  std::vector<WantedPart> parts;  // of the clusters, one behind the other
  std::shared_ptr<SlotLeases> leases = std::make_shared<SlotLeases>();
  std::shared_ptr<ReplyBuffers> buffers;  // of what found no slot; null: all did
  int open_count = 0;                     // reads that this waits for
  std::shared_ptr<void> io;
};

AttachedSession::Applied AttachedSession::StartFetch(RequestId request_id, const Fetch& op) {
  // Replies that are still being sent count: without room the fetch waits at the head of the queue.
  if (!HasIoRoom()) return Applied::kWait;
  auto job = std::make_shared<FetchJob>();
  job->request_id = request_id;
  job->layer = op.layer;
  job->with_positions = op.with_positions;
  std::int64_t bytes = 0;
  job->clusters.reserve(op.clusters.size());
  job->parts.reserve(op.clusters.size());
  const PositionDetail detail =
      op.with_positions ? PositionDetail::kAll : PositionDetail::kFirstAndCount;
  std::vector<Visible<StoredPart>> parts;
  for (const ClusterRef& ref : op.clusters) {
    FetchJob::Cluster cluster;
    cluster.key = {op.layer, ref.head, ref.cluster_id};
    const std::int64_t entry_bytes = state_->EntryBytes(cluster.key);
    state_->FindStoredParts(cluster.key, detail, parts);
    for (Visible<StoredPart>& visible : parts) {
      bytes += visible.count * entry_bytes;
      job->parts.push_back(Want(std::move(visible), entry_bytes));
      ++cluster.part_count;
    }
    const auto pending = state_->pending().find(cluster.key);
    if (pending != state_->pending().end()) cluster.pending = pending->second;
    for (const PendingChunk& chunk : cluster.pending)
      bytes += chunk.positions.count() * entry_bytes;
    job->clusters.push_back(std::move(cluster));
  }
  if (bytes > kFetchBytesMax) {
    Reply(request_id,
          InvalidArgument("fetch of {} bytes: at most {} in one", bytes, kFetchBytesMax));
    return Applied::kYes;
  }
  job->io = HoldIo();
  if (context_.cache != nullptr) context_.cache->NoteFetch(id_);
  if (context_.follows_hints()) hot_clusters_.Note(op.layer, op.clusters);
  AdvanceFetch(job);
  return Applied::kYes;
}

// Of a segment of the chain, the root first: what it hides of those before it, its run, and what
// changed since that was written. Returns the bytes of all that is wanted.
std::int64_t AttachedSession::WantIndexOf(const SegmentRows& rows, FetchJob& job,
                                          std::int64_t bytes) const {
  const auto found = rows.index_runs.find(job.layer);
  const IndexRun* run = found == rows.index_runs.end() ? nullptr : &found->second;
  if (job.only_visible && run != nullptr && run->hides_older) {
    job.clusters.clear();
    job.parts.clear();
    bytes = 0;
  }
  if (job.only_visible && !job.clusters.empty()) {
    const std::vector<IndexRow> hidden = HiddenRows(rows, job.layer);
    if (!hidden.empty()) job.clusters.emplace_back().pending.push_back(EncodeRecords(hidden));
    bytes += std::ssize(hidden) * RecordBytesOf(hidden);
  }
  FetchJob::Cluster& segment = job.clusters.emplace_back();
  if (run != nullptr) {
    for (const Part& part : run->parts) {
      job.parts.push_back(Want({part, part.count()}, run->record_bytes));
      job.parts.back().extent = part.extent;
      ++segment.part_count;
    }
    bytes += run->record_count() * run->record_bytes;
  }
  const std::vector<IndexRow> changed = ChangedRows(rows, job.layer, job.only_visible);
  if (!changed.empty()) segment.pending.push_back(EncodeRecords(changed));
  return bytes + std::ssize(changed) * RecordBytesOf(changed);
}

AttachedSession::Applied AttachedSession::StartFetchIndex(RequestId request_id,
                                                          const FetchIndex& op) {
  if (!HasIoRoom()) return Applied::kWait;
  auto job = std::make_shared<FetchJob>();
  job->request_id = request_id;
  job->layer = op.layer;
  job->of_index = true;
  job->only_visible = op.only_visible;
  std::int64_t bytes = 0;
  for (const SegmentRows& rows : state_->chain()) bytes = WantIndexOf(rows, *job, bytes);
  if (absl::Status status = CheckIndexBytes(bytes); !status.ok()) {
    Reply(request_id, std::move(status));
    return Applied::kYes;
  }
  job->io = HoldIo();
  AdvanceFetch(job);
  return Applied::kYes;
}

void AttachedSession::AdvanceFetch(const std::shared_ptr<FetchJob>& job) {
  if (stopped_) return;  // rule 5: reads of an ended epoch are dropped unchecked
  std::vector<WantedPart*> missing;
  std::vector<WantedPart*> doubtful;
  std::size_t looked_at = 0;
  for (WantedPart& wanted : job->parts) {
    if (++looked_at % kKeepBusyEvery == 0) context_.io->KeepBusy();
    if (wanted.outcome != WantedPart::Outcome::kOpen) continue;
    if (!FindPart(job, wanted)) (wanted.read_here ? doubtful : missing).push_back(&wanted);
    // What is served at once needs no more than its slot.
    if (wanted.outcome == WantedPart::Outcome::kOpen) Hold(wanted);
  }
  if (!missing.empty()) ReadMissing(job, std::move(missing));
  for (WantedPart* wanted : doubtful) RetryAlone(job, *wanted);
  if (job->open_count == 0) FinishFetch(*job);
}

// The first look at a part comes while rows name it. Pages of a sealed segment stay in use.
void AttachedSession::Hold(WantedPart& wanted) {
  if (wanted.extent != nullptr || !wanted.of_open_segment) return;
  wanted.extent = state_->open().parts.Hold(wanted.part);
}

// Whether there is nothing to be read here: the part is served or lost, or another read brings it.
bool AttachedSession::FindPart(const std::shared_ptr<FetchJob>& job, WantedPart& wanted) {
  SlotCache* cache = context_.cache.get();
  if (wanted.owner == nullptr) {
    SlotRef slot = cache == nullptr ? nullptr : cache->Find(wanted.first_page, wanted.page_count);
    if (slot == nullptr) return false;
    job->leases->Add(slot);
    wanted.pages = slot->At(wanted.first_page);
    wanted.owner = {job->leases, slot.get()};
    wanted.slot = std::move(slot);
    if (wanted.slot->loading()) {
      ++job->open_count;
      wanted.slot->WhenLoaded([this, job] {
        if (--job->open_count == 0) AdvanceFetch(job);
      });
      return true;
    }
  }
  const bool checked =
      wanted.slot != nullptr && wanted.slot->IsChecked(wanted.part.id, wanted.count);
  if (!wanted.read_failed && (checked || IsIntact(context_.store_id, wanted))) {
    wanted.outcome = WantedPart::Outcome::kServed;
    if (context_.cache != nullptr && !job->of_index) NoteServed(wanted, job->layer);
    return true;
  }
  if (wanted.read_here) {
    bool& before = wanted.read_failed ? wanted.failed_before : wanted.damaged_before;
    if (std::exchange(before, true)) {
      GiveUp(wanted, job->of_index);
      return true;
    }
  }
  // What the slot holds is older than the part: flash has the truth.
  wanted.slot = nullptr;
  wanted.owner = nullptr;
  return false;
}

void AttachedSession::GiveUp(WantedPart& wanted, bool of_index) {
  using Outcome = WantedPart::Outcome;
  wanted.outcome = wanted.read_failed ? Outcome::kUnreadable : Outcome::kLost;
  // An index is asked for again and again; its part stays lost until its run is written anew.
  if (of_index && !wanted.read_failed && !lost_index_parts_.insert(wanted.part.id).second) return;
  LogWarning("{} part={} first_page={} page_count={}", wanted.read_failed ? "unreadable" : "lost",
             wanted.part.id, wanted.first_page, wanted.page_count);
  ++(wanted.read_failed ? context_.unreadable_part_count : context_.lost_part_count);
}

void AttachedSession::NoteServed(WantedPart& wanted, std::int32_t layer) {
  const std::int64_t bytes = wanted.count * wanted.entry_bytes;
  if (wanted.slot != nullptr) {
    wanted.slot->SetChecked(wanted.part.id, wanted.count);
    const bool first_use = context_.cache->NoteUse(*wanted.slot, id_, layer);
    if (first_use && !wanted.read_here) context_.cache->Touch(*wanted.slot);
    // What was read ahead counts as such when it is fetched first, and as a hit from then on.
    if (context_.cache->TakeReadAhead(*wanted.slot, wanted.part.id)) return;
  }
  SlotCacheStats& stats = context_.cache->stats();
  (wanted.read_here ? stats.miss_count : stats.hit_count) += 1;
  (wanted.read_here ? stats.miss_bytes : stats.hit_bytes) += bytes;
}

void AttachedSession::ReadMissing(const std::shared_ptr<FetchJob>& job,
                                  std::vector<WantedPart*> missing) {
  std::vector<FetchRun> runs =
      MergeRuns(std::move(missing), context_.io->merge_limits(), PageIo::kHoleBytesMax);
  bool has_room = context_.cache != nullptr;
  std::size_t begun = 0;
  while (!runs.empty()) {
    FetchRun run = std::move(runs.back());
    runs.pop_back();
    SlotRef slot;
    if (has_room) {
      slot = context_.cache->Load(id_, run.first_page, run.page_count);
      if (slot == nullptr && run.parts.size() > 1) {
        SplitRun(std::move(run), runs);
        continue;
      }
      // Not even one part has room: what is left is read in as few requests as without a cache.
      has_room = slot != nullptr;
    }
    ReadRun(job, std::move(run), slot);
    if (++begun % kKeepBusyEvery == 0) context_.io->KeepBusy();
  }
}

void AttachedSession::ReadRun(const std::shared_ptr<FetchJob>& job, FetchRun run,
                              const SlotRef& slot) {
  std::span<std::byte> memory;
  SharedBuffer buffer;
  if (slot != nullptr) {
    memory = slot->block().bytes();
  } else {
    buffer = context_.io->buffers().MakeForRead(run.page_count * kPageBytes);
    memory = buffer->span().first(static_cast<std::size_t>(run.page_count * kPageBytes));
    if (job->buffers == nullptr) {
      job->buffers = std::make_shared<ReplyBuffers>(context_.io->buffers());
    }
    job->buffers->Add(buffer);
  }
  if (slot != nullptr) job->leases->Add(slot);
  for (WantedPart* wanted : run.parts) {
    wanted->read_here = true;
    wanted->slot = slot;
    wanted->pages =
        memory.data() + (wanted->first_page.value() - run.first_page.value()) * kPageBytes;
    // Kept together; told apart by what one read has brought.
    wanted->owner = slot != nullptr ? std::shared_ptr<const void>(job->leases, slot.get())
                                    : std::shared_ptr<const void>(job->buffers, buffer.get());
  }
  ++job->open_count;
  fetch_read_bytes_ += run.page_count * kPageBytes;
  context_.io->NoteHoles(run.hole_page_count);
  const PageIndex first_page = run.first_page;
  context_.io->ReadRun(
      first_page, memory, job->of_index ? ReadCause::kIndex : ReadCause::kFetch,
      [this, job, run = std::move(run), slot, buffer](const std::set<PageIndex>& failed) {
        if (!failed.empty() && run.hole_page_count > 0) {
          // What failed may lie in a hole, which nobody asked for.
          for (WantedPart* wanted : run.parts) RetryAlone(job, *wanted);
          if (slot != nullptr) context_.cache->Loaded(slot, false);
        } else {
          EndRun(run, failed);
          if (slot != nullptr) {
            ClearHoles(run, slot->block().bytes());
            context_.cache->Loaded(slot, failed.empty());
          }
        }
        if (--job->open_count == 0) AdvanceFetch(job);
      });
}

// Reads a part again into a buffer of its own.
void AttachedSession::RetryAlone(const std::shared_ptr<FetchJob>& job, WantedPart& wanted) {
  ReadRun(job, {wanted.first_page, wanted.page_count, 0, {&wanted}}, nullptr);
}

// All in one cluster, without what is lost. What was read leaves the cache first: it comes again
// when all other layers' have passed through.
FetchReply AttachedSession::IndexRecordsOf(FetchJob& job) {
  FetchedCluster records;
  records.cluster = {kAllHeads, ClusterId(1)};
  auto wanted = job.parts.begin();
  for (const FetchJob::Cluster& segment : job.clusters) {
    const bool has_older = !records.spans.empty();
    for (std::size_t i = 0; i < segment.part_count; ++i, ++wanted) {
      if (wanted->slot != nullptr) context_.cache->LeaveFirst(*wanted->slot);
      if (wanted->outcome == WantedPart::Outcome::kLost) {
        // What an older segment has of its clusters may say something else by now.
        if (job.only_visible && has_older) records.outcome = FetchOutcome::kLost;
        continue;
      }
      records.spans.push_back(SpanOf(*wanted, false));
    }
    for (const PendingChunk& chunk : segment.pending) {
      records.spans.push_back(SpanOf(chunk, false));
    }
  }
  if (records.outcome == FetchOutcome::kLost) records.spans.clear();
  FetchReply reply;
  reply.clusters.push_back(std::move(records));
  return reply;
}

void AttachedSession::FinishFetch(FetchJob& job) {
  const auto unreadable = [](const WantedPart& wanted) {
    return wanted.outcome == WantedPart::Outcome::kUnreadable;
  };
  // Left out, its clusters would look as if they had no rows.
  if (job.of_index && std::any_of(job.parts.begin(), job.parts.end(), unreadable)) {
    return Reply(job.request_id, UnreadableIndex(job.layer));
  }
  FetchReply reply = job.of_index ? IndexRecordsOf(job) : ClustersOf(job);
  job.parts.clear();  // the reply's spans hold what they need
  if (job.buffers != nullptr) job.buffers->HandOver(unsent_bytes_);
  Reply(job.request_id, ReadReply(std::move(reply)));
}

FetchReply AttachedSession::ClustersOf(FetchJob& job) {
  FetchReply reply;
  reply.clusters.reserve(job.clusters.size());
  auto wanted = job.parts.begin();
  for (const FetchJob::Cluster& source : job.clusters) {
    FetchedCluster cluster;
    cluster.cluster = {source.key.head, source.key.cluster_id};
    if (source.part_count == 0 && source.pending.empty()) cluster.outcome = FetchOutcome::kUnknown;
    for (std::size_t i = 0; i < source.part_count; ++i, ++wanted) {
      Worsen(cluster.outcome, wanted->outcome);
      cluster.spans.push_back(SpanOf(*wanted, job.with_positions));
    }
    for (const PendingChunk& chunk : source.pending) {
      cluster.spans.push_back(SpanOf(chunk, job.with_positions));
    }
    if (cluster.outcome != FetchOutcome::kFound) cluster.spans.clear();
    reply.clusters.push_back(std::move(cluster));
  }
  return reply;
}

}  // namespace cairn::kv
