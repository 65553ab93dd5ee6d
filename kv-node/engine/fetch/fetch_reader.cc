#include "kv-node/engine/fetch/fetch_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/fetch/wanted_part.h"
#include "kv-node/engine/index/index_records.h"

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
  if (FailPoint("a lease holds flash (rule 16)")) {
    wanted.owner = std::make_shared<std::pair<std::shared_ptr<const void>, ExtentRef>>(
        wanted.owner, wanted.extent);
  }
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

struct FetchReader::Job {
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
  std::int64_t read_bytes = 0;            // of the device
  std::shared_ptr<void> io;
};

Applied FetchReader::StartFetch(RequestId request_id, const Fetch& op) {
  // Replies that are still being sent count: without room the fetch waits at the head of the queue.
  if (!host_.HasIoRoom()) return Applied::kWait;
  auto job = std::make_shared<Job>();
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
    Job::Cluster cluster;
    cluster.key = {op.layer, ref.head, ref.cluster_id};
    const std::int64_t entry_bytes = state_.EntryBytes(cluster.key);
    state_.FindStoredParts(cluster.key, detail, parts);
    for (Visible<StoredPart>& visible : parts) {
      bytes += visible.count * entry_bytes;
      job->parts.push_back(Want(std::move(visible), entry_bytes));
      ++cluster.part_count;
    }
    const auto pending = state_.pending().find(cluster.key);
    if (pending != state_.pending().end()) cluster.pending = pending->second;
    for (const PendingChunk& chunk : cluster.pending)
      bytes += chunk.positions.count() * entry_bytes;
    job->clusters.push_back(std::move(cluster));
  }
  if (bytes > kFetchBytesMax) {
    host_.Reply(request_id,
                InvalidArgument("fetch of {} bytes: at most {} in one", bytes, kFetchBytesMax));
    return Applied::kYes;
  }
  job->io = host_.HoldIo();
  if (host_.cache() != nullptr) host_.cache()->NoteFetch(host_.id());
  AdvanceFetch(job);
  return Applied::kYes;
}

// Of a segment of the chain, the root first: what it hides of those before it, its run, and what
// changed since that was written. Returns the bytes of all that is wanted.
std::int64_t FetchReader::WantIndexOf(const SegmentRows& rows, Job& job, std::int64_t bytes) const {
  const auto found = rows.index_runs.find(job.layer);
  const IndexRun* run = found == rows.index_runs.end() ? nullptr : &found->second;
  if (job.only_visible && run != nullptr && run->hides_older &&
      !FailPoint("older records show where a run was lost")) {
    job.clusters.clear();
    job.parts.clear();
    bytes = 0;
  }
  if (job.only_visible && !job.clusters.empty()) {
    const std::vector<IndexRow> hidden = HiddenRows(rows, job.layer);
    if (!hidden.empty() && !FailPoint("replaced clusters' rows show in forks")) {
      job.clusters.emplace_back().pending.push_back(EncodeRecords(hidden));
    }
    bytes += std::ssize(hidden) * RecordBytesOf(hidden);
  }
  Job::Cluster& segment = job.clusters.emplace_back();
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

Applied FetchReader::StartFetchIndex(RequestId request_id, const FetchIndex& op) {
  if (!host_.HasIoRoom()) return Applied::kWait;
  auto job = std::make_shared<Job>();
  job->request_id = request_id;
  job->layer = op.layer;
  job->of_index = true;
  job->only_visible = op.only_visible;
  std::int64_t bytes = 0;
  for (const SegmentRows& rows : state_.chain()) bytes = WantIndexOf(rows, *job, bytes);
  if (absl::Status status = CheckIndexBytes(bytes); !status.ok()) {
    host_.Reply(request_id, std::move(status));
    return Applied::kYes;
  }
  job->io = host_.HoldIo();
  AdvanceFetch(job);
  return Applied::kYes;
}

void FetchReader::AdvanceFetch(const std::shared_ptr<Job>& job) {
  // Rule 5: reads of an ended epoch are dropped unchecked.
  if (host_.stopped() && !FailPoint("a read of an ended attachment is served (rule 5)")) return;
  std::vector<WantedPart*> missing;
  std::vector<WantedPart*> doubtful;
  std::size_t looked_at = 0;
  for (WantedPart& wanted : job->parts) {
    if (++looked_at % kKeepBusyEvery == 0) context_.io->KeepBusy();
    if (wanted.outcome != WantedPart::Outcome::kOpen) continue;
    if (!FindPart(job, wanted)) (wanted.read_here ? doubtful : missing).push_back(&wanted);
    // What is served at once needs no more than its slot.
    if (wanted.outcome == WantedPart::Outcome::kOpen &&
        !FailPoint("a fetch does not hold what it reads")) {
      HoldPages(state_, wanted);
    }
  }
  if (!missing.empty()) ReadMissing(job, std::move(missing));
  for (WantedPart* wanted : doubtful) RetryAlone(job, *wanted);
  if (job->open_count == 0) FinishFetch(*job);
}

// Whether there is nothing to be read here: the part is served or lost, or another read brings it.
bool FetchReader::FindPart(const std::shared_ptr<Job>& job, WantedPart& wanted) {
  SlotCache* cache = host_.cache();
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
  if (!wanted.read_failed &&
      (checked || IsIntact(context_.store_id, wanted) || FailPoint("parts are served unchecked"))) {
    wanted.outcome = WantedPart::Outcome::kServed;
    if (host_.cache() != nullptr && !job->of_index) NoteServed(wanted);
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

void FetchReader::GiveUp(WantedPart& wanted, bool of_index) {
  using Outcome = WantedPart::Outcome;
  wanted.outcome = wanted.read_failed ? Outcome::kUnreadable : Outcome::kLost;
  // An index is asked for again and again; its part stays lost until its run is written anew.
  if (of_index && !wanted.read_failed && !lost_index_parts_.insert(wanted.part.id).second) return;
  LogWarning("{} part={} first_page={} page_count={}", wanted.read_failed ? "unreadable" : "lost",
             wanted.part.id, wanted.first_page, wanted.page_count);
  ++(wanted.read_failed ? context_.counts.unreadable_part_count : context_.counts.lost_part_count);
}

void FetchReader::NoteServed(WantedPart& wanted) {
  const std::int64_t bytes = wanted.count * wanted.entry_bytes;
  if (wanted.slot != nullptr) {
    wanted.slot->SetChecked(wanted.part.id, wanted.count);
    const bool first_use = host_.cache()->NoteUse(*wanted.slot, host_.id());
    if (first_use && !wanted.read_here) host_.cache()->Touch(*wanted.slot);
  }
  SlotCacheStats& stats = host_.cache()->stats();
  (wanted.read_here ? stats.miss_count : stats.hit_count) += 1;
  (wanted.read_here ? stats.miss_bytes : stats.hit_bytes) += bytes;
}

void FetchReader::ReadMissing(const std::shared_ptr<Job>& job, std::vector<WantedPart*> missing) {
  std::vector<FetchRun> runs =
      MergeRuns(std::move(missing), context_.io->merge_limits(), PageIo::kHoleBytesMax);
  bool has_room = host_.cache() != nullptr;
  std::size_t begun = 0;
  while (!runs.empty()) {
    FetchRun run = std::move(runs.back());
    runs.pop_back();
    SlotRef slot;
    if (has_room) {
      slot = host_.cache()->Load(host_.id(), run.first_page, run.page_count);
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

void FetchReader::ReadRun(const std::shared_ptr<Job>& job, FetchRun run, const SlotRef& slot) {
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
  job->read_bytes += run.page_count * kPageBytes;
  read_bytes_ += run.page_count * kPageBytes;
  context_.io->NoteHoles(run.hole_page_count);
  const PageIndex first_page = run.first_page;
  context_.io->ReadRun(
      first_page, memory, job->of_index ? ReadCause::kIndex : ReadCause::kFetch,
      [this, job, run = std::move(run), slot, buffer](const std::set<PageIndex>& failed) {
        if (!failed.empty() && run.hole_page_count > 0) {
          // What failed may lie in a hole, which nobody asked for.
          for (WantedPart* wanted : run.parts) RetryAlone(job, *wanted);
          if (slot != nullptr) host_.cache()->Loaded(slot, false);
        } else {
          EndRun(run, failed);
          if (slot != nullptr) {
            if (!FailPoint("holes stay in the arena")) {
              ClearHoles(run, slot->block().bytes());
            }
            host_.cache()->Loaded(slot, failed.empty());
          }
        }
        if (--job->open_count == 0) AdvanceFetch(job);
      });
}

// Reads a part again into a buffer of its own.
void FetchReader::RetryAlone(const std::shared_ptr<Job>& job, WantedPart& wanted) {
  ReadRun(job, {wanted.first_page, wanted.page_count, 0, {&wanted}}, nullptr);
}

// All in one cluster, without what is lost. What was read leaves the cache first: it comes again
// when all other layers' have passed through.
FetchReply FetchReader::IndexRecordsOf(Job& job) {
  FetchedCluster records;
  records.cluster = {kAllHeads, ClusterId(1)};
  auto wanted = job.parts.begin();
  for (const Job::Cluster& segment : job.clusters) {
    const bool has_older = !records.spans.empty();
    for (std::size_t i = 0; i < segment.part_count; ++i, ++wanted) {
      if (wanted->slot != nullptr) host_.cache()->LeaveFirst(*wanted->slot);
      if (wanted->outcome == WantedPart::Outcome::kLost) {
        // What an older segment has of its clusters may say something else by now.
        if (job.only_visible && has_older &&
            !FailPoint("older records show behind a damaged index run")) {
          records.outcome = FetchOutcome::kLost;
        }
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

void FetchReader::FinishFetch(Job& job) {
  const auto unreadable = [](const WantedPart& wanted) {
    return wanted.outcome == WantedPart::Outcome::kUnreadable;
  };
  // Left out, its clusters would look as if they had no rows.
  if (job.of_index && std::any_of(job.parts.begin(), job.parts.end(), unreadable)) {
    ++context_.counts.unreadable_part_count;
    return host_.Reply(job.request_id, UnreadableIndex(host_.id(), job.layer));
  }
  FetchReply reply = job.of_index ? IndexRecordsOf(job) : ClustersOf(job);
  reply.read_bytes = job.read_bytes;
  job.parts.clear();  // the reply's spans hold what they need
  if (job.buffers != nullptr) job.buffers->HandOver(unsent_bytes_);
  host_.Reply(job.request_id, ReadReply(std::move(reply)));
}

FetchReply FetchReader::ClustersOf(Job& job) {
  FetchReply reply;
  reply.clusters.reserve(job.clusters.size());
  auto wanted = job.parts.begin();
  for (const Job::Cluster& source : job.clusters) {
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
