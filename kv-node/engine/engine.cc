#include "kv-node/engine/engine.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

// A channel's end on the caller's side. Counts what is queued, so that Submit can refuse without
// asking the engine thread.
class EngineChannel final : public Channel {
 public:
  EngineChannel(EngineCore& engine, SessionId session, Epoch epoch,
                std::shared_ptr<QueuedCount> queued)
      : engine_(engine), session_(session), epoch_(epoch), queued_(std::move(queued)) {}
  ~EngineChannel() override { engine_.PostDetach(session_, epoch_); }
  EngineChannel(const EngineChannel&) = delete;
  EngineChannel& operator=(const EngineChannel&) = delete;

  bool Submit(OpSeq op_seq, ChangingOperation operation) override {
    return Post({op_seq, RequestId(0), OpSeq(0), std::move(operation)});
  }
  bool Submit(RequestId request_id, OpSeq after, ReadOperation operation) override {
    return Post({OpSeq(0), request_id, after, std::move(operation)});
  }

 private:
  bool Post(QueuedOperation operation) {
    if (queued_->fetch_add(1) >= kChannelQueueMax) {
      queued_->fetch_sub(1);
      return false;
    }
    engine_.PostOperation(session_, epoch_, std::move(operation));
    return true;
  }

  EngineCore& engine_;
  const SessionId session_;
  const Epoch epoch_;
  const std::shared_ptr<QueuedCount> queued_;
};

// Ids that are used twice would let an old page pass for a new one.
absl::StatusOr<std::int64_t> LoadNextId(MetaReader& reader, std::int64_t largest_id) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> stored,
                         reader.Get(Family::kConfig, kNextIdKey));
  std::int64_t next_id = 1;
  if (stored) {
    CAIRN_ASSIGN_OR_RETURN(next_id, DecodeNextId(*stored));
  }
  if (next_id > largest_id) return next_id;
  return DataLoss(
      "the store's metadata is damaged: sessions or segments up to id {} are stored, but {}; "
      "nothing was changed; `cairn-kv-util repair` writes that number anew",
      largest_id,
      stored ? fmt::format("the next free id is said to be {}", next_id)
             : std::string("the row with the next free id is missing"));
}

}  // namespace

absl::Status EngineOptions::Validate() const {
  if (attached_sessions_max < 1 || sessions_max < 1 || place_entries_min < 1) {
    return InvalidArgument(
        "attached_sessions_max, sessions_max and place_entries_min must be 1 or more");
  }
  if (pending_bytes_max < kPartBytesMax || io_bytes_max < 2 * kPartBytesMax) {
    return InvalidArgument("pending_bytes_max must be {} or more, io_bytes_max {} or more",
                           kPartBytesMax, 2 * kPartBytesMax);
  }
  if (arena_bytes_max != 0 && arena_bytes_max < kArenaBytesMin) {
    return InvalidArgument("arena_bytes_max must be 0 or {} or more", kArenaBytesMin);
  }
  if (merge_gap_bytes < 0 || merge_gap_bytes > kMergeGapBytesMax || merge_piece_bytes_max < 0) {
    return InvalidArgument(
        "merge_gap_bytes must be 0 to {}, and merge_piece_bytes_max not negative",
        kMergeGapBytesMax);
  }
  return absl::OkStatus();
}

EngineCore::EngineCore(const EngineOptions& options, const StoreId& store_id, EngineWorld world)
    : device_(std::move(world.device)),
      meta_(std::move(world.meta)),
      random_bytes_(std::move(world.random_bytes)) {
  context_.options = options;
  context_.unix_microseconds = std::move(world.unix_microseconds);
  context_.return_freed_memory = std::move(world.return_freed_memory);
  context_.store_id = store_id;
  context_.free_map = std::make_shared<FreeMap>(device_->size_bytes() / kPageBytes, kFirstDataPage);
  context_.io = std::make_unique<PageIo>(
      *device_, MergeLimits{options.merge_gap_bytes, options.merge_piece_bytes_max},
      context_.counts);
  if (options.arena_bytes_max > 0) {
    context_.caches = std::make_unique<AppCaches>(
        options.arena_bytes_max, options.replacement,
        GranuleWatch{
            .comes = [this](std::span<std::byte> memory) { device_->AddReadMemory(memory); },
            .goes = [this](std::span<std::byte> memory) { device_->RemoveReadMemory(memory); }});
    context_.io->SetOnWrite(
        [caches = context_.caches.get()](PageIndex first, std::span<const std::byte> bytes) {
          if (!FailPoint("slots outlive their attachment and what is written there (rule 5)")) {
            caches->OnWrite(first, bytes);
          }
        });
  }
  context_.on_sealed = [this](SegmentId segment) {
    if (defragmenter_ != nullptr) defragmenter_->NoteSealed(segment);
  };
  if (options.defragment) {
    defragmenter_ = std::make_unique<Defragmenter>(context_, SessionsForDefragmenter());
  }
  context_.meta = meta_.get();
  context_.post = [this](Task task) { Post(std::move(task)); };
}

absl::Status EngineCore::Prepare(EngineTime now) {
  context_.now = now;
  MetaReader& reader = meta_->reader();
  std::int64_t largest_id = 0;  // that a row shows to be in use
  CAIRN_RETURN_IF_ERROR(LoadAllocation(reader, *context_.free_map,
                                       [&](const ParsedRegionKey& key, const RegionBits&) {
                                         largest_id = std::max(largest_id, key.segment.value());
                                         return absl::OkStatus();
                                       }));
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSessions, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const SessionId session, ParseSessionKey(key));
        largest_id = std::max(largest_id, session.value());
        // One that is damaged shows when it is opened.
        const absl::StatusOr<SessionRow> row = DecodeSessionRow(value);
        ++SessionCountOf(row.ok() ? row->app : kDefaultApp);
        if (row.ok() && !row->uid.empty()) creations_.Note({row->app, row->uid}, session);
        if (row.ok()) NoteUnattached(session, row->lifetime);
        return absl::OkStatus();
      }));
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t next_id, LoadNextId(reader, largest_id));
  const auto batch_for = [](std::int64_t limit) {
    MetaBatch batch;
    batch.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(limit));
    return batch;
  };
  CAIRN_RETURN_IF_ERROR(meta_->CommitAndWait(batch_for(next_id + kIdBlockCount)));
  context_.ids = std::make_unique<IdSource>(
      next_id, next_id + kIdBlockCount,
      [this, batch_for](std::int64_t limit, std::function<void(absl::Status)> done) {
        context_.Commit(batch_for(limit), std::move(done));
      });
  std::int32_t session_count = 0;
  for (const auto& [app, count] : session_counts_) session_count += count;
  LogInfo("engine sessions={} flash_used_bytes={} flash_size_bytes={} io_engine={}", session_count,
          context_.free_map->used_count() * kPageBytes,
          context_.free_map->page_count() * kPageBytes, device_->name());
  return absl::OkStatus();
}

EngineCore::~EngineCore() {
  meta_.reset();  // what it still tells goes to the inbox
}

void EngineCore::StartStop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  device_->Wake();
}

void EngineCore::Post(Task task) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(task));
  }
  device_->Wake();
}

bool EngineCore::RunInbox() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(inbox_);
  }
  for (const Task& task : tasks) task();
  return !tasks.empty();
}

bool EngineCore::RunOnce(EngineTime now, std::chrono::microseconds wait_max) {
  context_.now = now;
  bool busy = RunInbox();
  busy = context_.io->RunReady() || busy;
  LookForLate();
  for (auto& [id, session] : attached_) session->Pump();
  if (context_.may_settle_doubts) SettleDoubts();
  // Placing has the lowest priority but one: only while the device has nothing else to do.
  if (!busy && device_->in_flight_count() == 0) {
    busy = PlaceAtIdle();
    if (!busy && IsTimeToDefragment()) busy = defragmenter_->Step();
  }
  dram_peak_bytes_ = std::max(dram_peak_bytes_, DramUsedBytes());
  if (!busy && HasStopped()) return false;  // nothing would end the wait
  const int completed_count = device_->Poll(busy ? std::chrono::microseconds(0) : wait_max);
  if (Stopping()) StopAttached();
  return busy || completed_count > 0;
}

bool EngineCore::PlaceAtIdle() {
  bool busy = false;
  for (auto& [id, session] : attached_) busy = session->PlaceAtIdle() || busy;
  return busy;
}

void EngineCore::StopAttached() {
  while (!attached_.empty()) {
    StopSession(attached_.begin()->first, Unavailable("the KV node is stopping"), [] {});
  }
}

void EngineCore::LookForLate() {
  constexpr std::chrono::milliseconds kInterval{100};
  if (context_.now < next_look_) return;
  next_look_ = context_.now + kInterval;
  StopLateUnbound();
  DeleteAbandoned();
}

bool EngineCore::HasStopped() {
  const bool moving = defragmenter_ != nullptr && defragmenter_->active();
  return Stopping() && attached_.empty() && ending_.empty() && serial_.empty() && !moving &&
         device_->in_flight_count() == 0;
}

bool EngineCore::IsTimeToDefragment() {
  return defragmenter_ != nullptr && !Stopping() &&
         context_.now - last_operation_ >= context_.options.defragment_idle;
}

bool EngineCore::Stopping() {
  MutexLock lock(mutex_);
  return stopping_ && inbox_.empty();
}

void EngineCore::PostOperation(SessionId session, Epoch epoch, QueuedOperation operation) {
  // Bounded by kChannelQueueMax for each channel. A std::function must be copyable, an operation is
  // not cheap to copy.
  auto shared = std::make_shared<QueuedOperation>(std::move(operation));
  Post([this, session, epoch, shared] {
    // Rule 12: the epoch is checked when the operation is applied; an ended channel has been told
    // so.
    last_operation_ = context_.now;
    if (AttachedSession* attached = Find(session, epoch)) attached->Enqueue(std::move(*shared));
  });
}

void EngineCore::PostDetach(SessionId session, Epoch epoch) {
  Post([this, session, epoch] {
    if (Find(session, epoch) == nullptr) return;
    StopSession(session, Cancelled("the channel was closed"), [] {});
  });
}

AttachedSession* EngineCore::Find(SessionId session, Epoch epoch) {
  const auto found = attached_.find(session);
  if (found == attached_.end()) return nullptr;
  if (found->second->epoch() != epoch &&
      !FailPoint("operations of older epochs are applied (rule 12)")) {
    return nullptr;
  }
  return found->second.get();
}

AttachedSession* EngineCore::Find(AppId app, SessionId session, Epoch epoch) {
  AttachedSession* found = Find(session, epoch);
  return found != nullptr && found->row().app == app ? found : nullptr;
}

void EngineCore::StopSession(SessionId session, const absl::Status& why, Task then) {
  const auto found = attached_.find(session);
  if (found == attached_.end()) {
    if (!ending_.contains(session)) return then();
    // Another stop is under way: go on behind it.
    return Post([this, session, why, then = std::move(then)] { StopSession(session, why, then); });
  }
  std::unique_ptr<AttachedSession>& ending = ending_[session];
  ending = std::move(found->second);
  attached_.erase(found);
  ending->Stop(why, [this, session, then = std::move(then)] {
    EndAttachment(session);
    then();
  });
}

void EngineCore::EndAttachment(SessionId session) {
  const auto ended = ending_.find(session);
  NoteUnattached(session, ended->second->row().lifetime);
  const AppId app = ended->second->row().app;
  ending_.erase(ended);
  if (context_.caches == nullptr) return;
  SlotCache& cache = context_.caches->Of(app);
  // Rule 5: what comes behind a rollback has the same parts with other bytes.
  if (!FailPoint("slots outlive their attachment") &&
      !FailPoint("slots outlive their attachment and what is written there (rule 5)")) {
    cache.ForgetAllOf(session);
  }
  const auto is_of_app = [app](const auto& entry) { return entry.second->row().app == app; };
  const bool has_more = std::any_of(attached_.begin(), attached_.end(), is_of_app) ||
                        std::any_of(ending_.begin(), ending_.end(), is_of_app);
  if (!has_more) cache.Trim();
}

std::vector<std::shared_ptr<const ArenaGranule>> EngineCore::ArenaGranules(AppId app) const {
  if (context_.caches == nullptr) return {};
  return context_.caches->GranulesOf(app);
}

void EngineCore::Serialise(SessionId session, Task task) {
  std::deque<Task>& waiting = serial_[session];
  waiting.push_back(std::move(task));
  if (waiting.size() == 1) waiting.front()();
}

void EngineCore::EndSerial(SessionId session) {
  // Behind the callback that is running now, so that a chain of operations does not nest.
  Post([this, session] {
    std::deque<Task>& waiting = serial_[session];
    waiting.pop_front();
    if (waiting.empty()) {
      serial_.erase(session);
    } else {
      waiting.front()();
    }
  });
}

void EngineCore::PostAttach(AttachRequest request, Callback<Attachment> done) {
  PostRequest(std::move(done),
              [this, request = std::move(request)](const Callback<Attachment>& cb) {
                const SessionId session = request.session.id;
                Serialise(session, [this, request, cb] {
                  StartAttach(request, EndingSerial<Attachment>(request.session.id, cb));
                });
              });
}

void EngineCore::CloseSession(AppId app, SessionId session, Epoch epoch,
                              Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, app, session, epoch](const Callback<std::monostate>& cb) {
    const auto found = attached_.find(session);
    // As if it was not open.
    if (found != attached_.end() && found->second->row().app != app) return cb(std::monostate());
    if (found != attached_.end() && found->second->epoch() != epoch) {
      return cb(FailedPrecondition("session {} has epoch {}, not {}", session,
                                   found->second->epoch(), epoch));
    }
    StopSession(session, Cancelled("the session was closed"), [cb] { cb(std::monostate()); });
  });
}

void EngineCore::DeleteSession(AppId app, SessionRef session, Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, app, session](const Callback<std::monostate>& cb) {
    if (session.id == kTreeLock) return cb(NotFound("session {} is not in the store", session.id));
    if (std::ssize(deletions_) >= kInboxMax) {
      return cb(Unavailable("{} deletions wait, the most that may: try again", kInboxMax));
    }
    deletions_.push_back({app, session, cb});
    if (deletions_.size() == 1) StartDeletions();
  });
}

void EngineCore::SealSession(AppId app, SessionRef session, Callback<SealedSegment> done) {
  PostRequest(std::move(done), [this, app, session](const Callback<SealedSegment>& cb) {
    Serialise(session.id, [this, app, session, cb] {
      StartSeal(app, session, EndingSerial<SealedSegment>(session.id, cb));
    });
  });
}

void EngineCore::SupersedeSession(AppId app, Supersession request, Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, app, request](const Callback<std::monostate>& cb) {
    const SessionId session = request.session.id;
    const SessionId replacement = request.replacement.id;
    if (session == replacement || session == kTreeLock || replacement == kTreeLock) {
      return cb(
          InvalidArgument("session {} cannot take the place of session {}", replacement, session));
    }
    // As deletions do: the tree first.
    Serialise(kTreeLock, [this, app, request, session, replacement, cb] {
      Serialise(session, [this, app, request, session, replacement, cb] {
        Serialise(replacement, [this, app, request, session, replacement, cb] {
          Callback<std::monostate> ending = EndingSerial(kTreeLock, cb);
          ending = EndingSerial(session, std::move(ending));
          StartSupersede(app, request, EndingSerial(replacement, std::move(ending)));
        });
      });
    });
  });
}

void EngineCore::Create(AppId app, CreateSession request, Callback<SessionRef> done) {
  if (request.uid.empty()) request.uid = random_bytes_(kUidBytes);
  PostRequest(std::move(done), [this, app, request = std::move(request)](Callback<SessionRef> cb) {
    const RecentCreations::Key key{app, request.uid};
    NoteAskedAgain(key);
    if (!creations_.Begin(key, cb)) return;
    const bool may_be_there = creations_.HasFailed(key);
    cb = [this, key, cb = std::move(cb)](const absl::StatusOr<SessionRef>& created) {
      creations_.End(key, created);
      cb(created);
    };
    if (!may_be_there) return CreateOnTree(app, request, cb);
    FindCreated(app, request, [this, app, request, cb](const absl::StatusOr<SessionId>& found) {
      if (!found.ok()) return cb(found.status());
      if (*found == SessionId()) return CreateOnTree(app, request, cb);
      ++SessionCountOf(app);
      NoteUnattached(*found, request.lifetime);
      cb(SessionRef{*found, request.uid});
    });
  });
}

void EngineCore::GetStats(AppId app, Callback<KvStats> done) {
  PostRequest(std::move(done), [this, app](const Callback<KvStats>& cb) { cb(Stats(app)); });
}

void EngineCore::Attach(AppId app, SessionId session, Epoch epoch,
                        std::shared_ptr<ChannelObserver> observer,
                        Callback<std::shared_ptr<Channel>> done) {
  PostRequest(std::move(done), [this, app, session, epoch, observer = std::move(observer)](
                                   const Callback<std::shared_ptr<Channel>>& cb) {
    AttachedSession* attached = Find(app, session, epoch);
    if (attached == nullptr || attached->bound()) {
      return cb(
          FailedPrecondition("session {} is not attached with epoch {}, or its channel is bound "
                             "already: open it again",
                             session, epoch));
    }
    auto queued = std::make_shared<QueuedCount>(0);
    attached->Bind(observer, queued);
    cb(std::make_shared<EngineChannel>(*this, session, epoch, queued));
  });
}

}  // namespace cairn::kv
