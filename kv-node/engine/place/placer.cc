#include "kv-node/engine/place/placer.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fail_point.h"

namespace cairn::kv {

struct Placer::Job {
  ClusterKey key;
  std::vector<Part> keep;    // placed parts before the one that is written
  std::vector<Part> logged;  // log parts whose entries are placed
  std::vector<Part> rest;    // log parts behind them
  std::vector<PendingChunk> pending;
  std::int64_t pending_count = 0;
  std::int64_t new_count = 0;  // entries that are written
  // The part that grows, or one without entries at a free end; none: a fresh pool.
  std::optional<Part> target;
  std::shared_ptr<void> kept;       // the end that was kept for it, until the part is there
  std::shared_ptr<void> pool_hold;  // of the target's pool
  std::shared_ptr<void> io;
};

namespace {

// Copies entries into their places. `first` is the first entry's index in the part; `image` begins
// at extent byte `image_begin`.
void PutEntries(const Part& part, std::int64_t entry_bytes, std::int64_t first,
                std::span<const std::byte> entries, std::byte* image, std::int64_t image_begin) {
  const auto count = static_cast<std::int64_t>(entries.size()) / entry_bytes;
  if (part.direction == Direction::kUp) {
    const ByteRange range = RangeOf(part, entry_bytes, first, count);
    std::memcpy(image + range.begin - image_begin, entries.data(), entries.size());
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const ByteRange range = RangeOf(part, entry_bytes, first + i, 1);
    std::memcpy(image + range.begin - image_begin, entries.data() + i * entry_bytes,
                static_cast<std::size_t>(entry_bytes));
  }
}

// Of the parts behind the last one that was placed.
std::int64_t LoggedCount(const std::vector<StoredPart>& parts) {
  std::int64_t count = 0;
  for (auto part = parts.rbegin(); part != parts.rend() && IsLog(*part); ++part) {
    count += part->count();
  }
  return count;
}

// Whether a part of so many bytes uses nearly all of its pages.
bool FillsPages(std::int64_t bytes) {
  const std::int64_t unused_bytes = (kPageBytes - bytes % kPageBytes) % kPageBytes;
  return bytes > 0 && unused_bytes <= bytes / 16;
}

std::span<const std::byte> AsBytes(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

}  // namespace

Placer::Placer(SessionHost& host, const CoFetches& co_fetches, std::shared_ptr<PoolTable> pools,
               SessionWrites& writes)
    : host_(host),
      context_(host.context()),
      state_(host.state()),
      co_fetches_(co_fetches),
      pools_(std::move(pools)),
      writes_(writes) {
  // What was logged is placed as soon as the session is open.
  CAIRN_CHECK(state_.pending().empty());
  state_.open().parts.rows().ForEachLogged(
      [this](const ClusterKey& key, const std::vector<StoredPart>& parts) {
        if (LoggedCount(parts) >= context_.options.place_entries_min) idle_candidates_.insert(key);
      });
}

// Takes a cluster's first pending entries, as many as a pool holds beside what the job has already.
void Placer::TakePendingChunks(const std::vector<PendingChunk>& chunks, std::int64_t entry_bytes,
                               std::int64_t room_max, Job& job) {
  for (const PendingChunk& chunk : chunks) {
    const std::int64_t take = std::min(chunk.positions.count(), room_max - job.new_count);
    if (take == 0) break;
    job.new_count += take;
    job.pending_count += take;
    if (take == chunk.positions.count()) {
      job.pending.push_back(chunk);
      continue;
    }
    const auto bytes = static_cast<std::size_t>(take * entry_bytes);
    job.pending.push_back({chunk.positions.Slice(0, take),
                           std::make_shared<const std::string>(chunk.bytes->substr(0, bytes))});
  }
}

std::int64_t Placer::UnplacedCount(const ClusterKey& key) const {
  return state_.PendingCount(key) + LoggedCount(state_.open().parts.rows().Find(key));
}

void Placer::PlaceForRoom() {
  std::vector<std::pair<std::int64_t, ClusterKey>> fullest;
  for (const auto& [key, chunks] : state_.pending()) {
    const std::int64_t bytes = state_.PendingCount(key) * state_.EntryBytes(key);
    const std::int64_t unplaced_count = UnplacedCount(key);
    if (tried_for_room_.contains(key) &&
        !FailPoint("a damaged cluster is placed for room for ever")) {
      continue;
    }
    if (unplaced_count < context_.options.place_entries_min &&
        !FillsPages(unplaced_count * state_.EntryBytes(key))) {
      continue;
    }
    fullest.emplace_back(bytes, key);
  }
  std::stable_sort(fullest.begin(), fullest.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<ClusterKey> candidates;
  candidates.reserve(fullest.size());
  for (const auto& [bytes, key] : fullest) candidates.push_back(key);
  std::set<LayerHead> planned;
  std::set<ClusterKey> done;
  std::int64_t coming = context_.pending_bytes;
  waits_ = false;
  const auto place = [&](const ClusterKey& key) {
    if (coming <= context_.options.pending_bytes_max / 2 || !done.insert(key).second) return;
    const std::int64_t bytes = state_.PendingCount(key) * state_.EntryBytes(key);
    if (placing_.contains(key)) {
      coming -= bytes;
    } else if (Start(key)) {
      tried_for_room_.insert(key);
      coming -= bytes;
    }
  };
  for (const ClusterKey& key : candidates) {
    if (coming <= context_.options.pending_bytes_max / 2) break;
    if (WantsPlan(key) && planned.emplace(key.layer, key.head).second) {
      // One after the other, so that pools are not left half empty.
      for (const ClusterKey& together : PlanTogether({key.layer, key.head}, candidates)) {
        place(together);
      }
    }
    place(key);
  }
}

// Looks at one cluster when its entries change, so that idling does not walk over all of them: a
// session of 64K clusters took 10 ms for that.
void Placer::NoteUnplaced(const ClusterKey& key) {
  if (UnplacedCount(key) >= context_.options.place_entries_min) {
    idle_candidates_.insert(key);
  } else {
    idle_candidates_.erase(key);
  }
}

bool Placer::PlaceAtIdle() {
  if (!context_.options.place_at_idle) return false;
  std::int64_t most = context_.options.place_entries_min - 1;
  std::optional<ClusterKey> best;
  std::erase_if(idle_candidates_, [&](const ClusterKey& key) {
    const std::int64_t count = UnplacedCount(key);
    if (count < context_.options.place_entries_min) return true;
    if (count > most && !placing_.contains(key)) {
      most = count;
      best = key;
    }
    return false;
  });
  if (!best) return false;
  if (WantsPlan(*best)) {
    PlanTogether({best->layer, best->head}, {idle_candidates_.begin(), idle_candidates_.end()});
  }
  if (!Start(*best)) return false;
  // Back with its next entries: what cannot be placed now is not tried for ever.
  idle_candidates_.erase(*best);
  return true;
}

bool Placer::TakeEntries(Job& job) const {
  const std::int64_t entry_bytes = state_.EntryBytes(job.key);
  const std::int64_t room_max = kPartBytesMax / entry_bytes;
  const std::vector<Part> parts = state_.open().parts.Find(job.key);
  // Logged parts before a placed one stay: the order of positions is the order of the row.
  std::size_t placed = parts.size();
  while (placed > 0 && IsLog(parts[placed - 1])) --placed;
  std::size_t next = placed;
  for (; next < parts.size() && job.new_count + parts[next].count() <= room_max; ++next) {
    job.new_count += parts[next].count();
    job.logged.push_back(parts[next]);
  }
  job.rest.assign(parts.begin() + static_cast<std::ptrdiff_t>(next), parts.end());
  job.keep.assign(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(placed));
  const auto pending = state_.pending().find(job.key);
  if (job.rest.empty() && pending != state_.pending().end()) {
    TakePendingChunks(pending->second, entry_bytes, room_max, job);
  }
  return job.new_count > 0;
}

bool Placer::TakePlanned(Job& job, std::int64_t new_bytes) {
  const auto found = planned_.find(job.key);
  if (found == planned_.end()) return true;
  PlannedEnd& planned = found->second;
  switch (pools_->StateOf(planned.extent, planned.direction, new_bytes, WriteCheck())) {
    case PoolTable::EndState::kBusy:
      waits_ = true;
      return false;
    case PoolTable::EndState::kFree:
      job.target.emplace();
      job.target->SetExtent(planned.extent);
      job.target->direction = planned.direction;
      job.kept = std::move(planned.kept);
      break;
    case PoolTable::EndState::kTaken:  // the cluster has grown over the room
      break;
  }
  planned_.erase(found);
  return true;
}

bool Placer::ChoosePlace(Job& job) {
  const std::int64_t entry_bytes = state_.EntryBytes(job.key);
  const std::int64_t new_bytes = job.new_count * entry_bytes;
  const PoolTable::WriteCheck check = WriteCheck();
  if (!job.keep.empty() && job.keep.back().extent->kind() == ExtentKind::kPool) {
    const Part& last = job.keep.back();
    if (last.count() * entry_bytes + new_bytes <= pools_->RoomBytes(last)) {
      if (pools_->IsBusy(last, entry_bytes, job.new_count, check)) {
        waits_ = true;
        return false;
      }
      job.target = last;
      job.keep.pop_back();
    }
  }
  if (!job.target && !TakePlanned(job, new_bytes)) return false;
  if (!job.target && context_.options.pool_sharing) {
    const LayerHead owner{job.key.layer, job.key.head};
    if (auto end = pools_->FindEnd(owner, new_bytes, RelatedPlaces(job.key), check)) {
      job.target.emplace();
      job.target->SetExtent(std::move(end->extent));
      job.target->direction = end->direction;
    }
  }
  if (job.target) job.pool_hold = pools_->HoldForPlacing(job.target->extent);
  return true;
}

bool Placer::Start(const ClusterKey& key) {
  if (placing_.contains(key)) return false;
  auto job = std::make_shared<Job>();
  job->key = key;
  if (!TakeEntries(*job) || !ChoosePlace(*job)) return false;
  const std::int64_t entry_bytes = state_.EntryBytes(key);
  std::vector<PageIndex> pages;
  if (job->target) pages = pools_->PagesToCheck(*job->target, entry_bytes, job->new_count);
  for (const Part& part : job->logged) AddPages(part, entry_bytes, part.count(), pages);
  placing_.insert(key);
  job->io = host_.HoldIo();
  if (pages.empty()) {
    WritePlaced(job, PageSet());
  } else {
    context_.io->Read(std::move(pages), ReadCause::kPlace,
                      [this, job](const PageSet& set) { Finish(job, set); });
  }
  return true;
}

void Placer::Finish(const std::shared_ptr<Job>& job, const PageSet& pages) {
  const std::int64_t entry_bytes = state_.EntryBytes(job->key);
  if (host_.ends()) {
    placing_.erase(job->key);
    return;
  }
  for (const Part& part : job->logged) {
    const PartState state = CheckPart(context_.store_id, part, entry_bytes, part.count(), pages);
    if (state == PartState::kIntact) continue;
    context_.NoteState(state);
    placing_.erase(job->key);  // stays logged until the cluster is repaired
    return;
  }
  if (job->target &&
      !pools_->AreIntact(context_.store_id, *job->target, entry_bytes, job->new_count, pages)) {
    // The page is left alone, whichever part failed: what is still right in it, or was only read
    // wrong, stays. The entries go elsewhere.
    ++context_.counts.lost_part_count;
    pools_->NoteDamage(*job->target->extent);
    if (job->target->count() > 0) job->keep.push_back(*job->target);
    job->target.reset();
    job->kept.reset();
    job->pool_hold.reset();
  }
  WritePlaced(job, pages);
}

// Room for as many entries again, because a cluster that grew so far will grow on, and as much for
// the cluster that will share the pool. None for one that was placed because it fills pages: the
// few entries that come next are logged.
std::int64_t Placer::TimesForOnePart(std::int64_t entry_count) const {
  if (entry_count < context_.options.place_entries_min) return 1;
  return context_.options.pool_sharing ? 4 : 2;
}

absl::StatusOr<ExtentRef> Placer::AllocatePool(std::int64_t bytes, std::int64_t times) const {
  const std::int64_t roomy = PoolClassPages(std::min(times * bytes, kPartBytesMax));
  absl::StatusOr<ExtentRef> extent = context_.Allocate(ExtentKind::kPool, roomy);
  if (extent.ok()) return extent;
  return context_.Allocate(ExtentKind::kPool, PoolClassPages(bytes));
}

void Placer::WritePlaced(const std::shared_ptr<Job>& job, const PageSet& pages) {
  const std::int64_t entry_bytes = state_.EntryBytes(job->key);
  placing_.erase(job->key);
  const bool fresh = !job->target;
  error_ = absl::OkStatus();
  if (fresh) {
    const std::int64_t times = TimesForOnePart(job->new_count);
    absl::StatusOr<ExtentRef> extent = AllocatePool(job->new_count * entry_bytes, times);
    if (!extent.ok() && !planned_.empty()) {  // kept places give way to what comes now
      planned_.clear();
      extent = AllocatePool(job->new_count * entry_bytes, times);
    }
    error_ = extent.status();
    if (!extent.ok()) return;  // what is pending or logged stays so
    job->target.emplace();
    job->target->SetExtent(*std::move(extent));
  }
  Part part = *job->target;
  const std::int64_t first = part.count();
  if (first == 0) {
    const absl::StatusOr<std::int64_t> id = context_.ids->Next();
    error_ = id.status();
    if (!id.ok()) return;
    part.id = PartId(*id);
  }
  const ByteRange range = RangeOf(part, entry_bytes, first, job->new_count);
  const std::int64_t image_begin = range.begin / kPageBytes * kPageBytes;
  const std::int64_t image_end = (range.end + kPageBytes - 1) / kPageBytes * kPageBytes;
  SharedBuffer image = context_.io->buffers().MakeZeroed(image_end - image_begin);
  if (!fresh) {
    // All bytes of a page that was read stay, also those of a part that memory has dropped.
    for (const PageIndex page : pools_->PagesToCheck(part, entry_bytes, job->new_count)) {
      const std::int64_t begin = (page.value() - part.extent->first().value()) * kPageBytes;
      if (FailPoint("a page is written again with what is new only (rule 6)")) continue;
      std::memcpy(image->data() + begin - image_begin, pages.Page(page).data(), kPageBytes);
    }
  }
  for (const Part& logged : job->logged) part.positions.AppendAll(logged.positions);
  for (const PendingChunk& chunk : job->pending) part.positions.AppendAll(chunk.positions);
  std::int64_t at = first;
  for (const Part& logged : job->logged) {
    const ByteRange bytes = RangeOf(logged, entry_bytes, 0, logged.count());
    PutEntries(part, entry_bytes, at, pages.Bytes(*logged.extent, bytes), image->data(),
               image_begin);
    at += logged.count();
  }
  for (const PendingChunk& chunk : job->pending) {
    PutEntries(part, entry_bytes, at, AsBytes(*chunk.bytes), image->data(), image_begin);
    at += chunk.positions.count();
  }
  SetCrcs(context_.store_id, part, entry_bytes, first, job->new_count, *image, image_begin);
  writes_.Write(part.extent, PageIndex(part.extent->first().value() + image_begin / kPageBytes),
                std::move(image), WriteCause::kPool);
  if (first == 0) {
    pools_->Add({job->key.layer, job->key.head}, entry_bytes, part);
  } else {
    pools_->NoteGrowth(entry_bytes, part);
  }

  std::vector<Part> row = std::move(job->keep);
  row.push_back(std::move(part));
  row.insert(row.end(), job->rest.begin(), job->rest.end());
  state_.PutParts(job->key, row);
  context_.pending_bytes -= job->pending_count * entry_bytes;
  state_.DropPending(job->key, job->pending_count);
  NoteUnplaced(job->key);
}

void Placer::NoteDropped(const std::vector<Part>& parts) {
  // Log runs are found at the next cut: other rows may name their other records.
  for (const Part& part : parts) {
    if (part.extent->kind() == ExtentKind::kPool) pools_->Drop(part);
  }
}

}  // namespace cairn::kv
