#include "kv-node/engine/engine.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"
#include "common/base/random_bytes.h"
#include "common/base/thread.h"
#include "common/log/log.h"
#include "kv-node/engine/allocation.h"
#include "kv-node/engine/engine_impl.h"
#include "kv-node/engine/session_list.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

// A channel's end on the caller's side. Counts what is queued, so that Submit can refuse without
// asking the engine thread.
class EngineChannel final : public Channel {
 public:
  EngineChannel(EngineImpl& engine, SessionId session, Epoch epoch,
                std::shared_ptr<std::atomic<std::int32_t>> queued)
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
  bool Submit(RequestId request_id, HintOperation hint) override {
    return Post({OpSeq(0), request_id, OpSeq(0), std::move(hint)});
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

  EngineImpl& engine_;
  const SessionId session_;
  const Epoch epoch_;
  const std::shared_ptr<std::atomic<std::int32_t>> queued_;
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

// Gives the channel's room back, then tells the observer.
class CountingObserver final : public ChannelObserver {
 public:
  CountingObserver(std::shared_ptr<ChannelObserver> observer,
                   std::shared_ptr<std::atomic<std::int32_t>> queued)
      : observer_(std::move(observer)), queued_(std::move(queued)) {}
  void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) override {
    observer_->OnCheckpointed(op_seq, checkpointed);
  }
  void OnFailure(OpSeq op_seq, const absl::Status& status) override {
    observer_->OnFailure(op_seq, status);
  }
  void OnPassedOver(OpSeq op_seq) override { observer_->OnPassedOver(op_seq); }
  void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) override {
    observer_->OnReply(request_id, std::move(reply));
  }
  void OnRoom() override {
    queued_->fetch_sub(1);
    observer_->OnRoom();
  }

 private:
  const std::shared_ptr<ChannelObserver> observer_;
  const std::shared_ptr<std::atomic<std::int32_t>> queued_;
};

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

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                                     const StoreId& store_id,
                                                     std::unique_ptr<Device> device,
                                                     std::unique_ptr<MetaStore> meta) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  auto engine = std::make_unique<EngineImpl>(options, store_id, std::move(device), std::move(meta));
  CAIRN_RETURN_IF_ERROR(engine->Prepare());
  engine->Start();
  return engine;
}

EngineImpl::EngineImpl(const EngineOptions& options, const StoreId& store_id,
                       std::unique_ptr<Device> device, std::unique_ptr<MetaStore> meta)
    : device_(std::move(device)), meta_(std::move(meta)) {
  context_.options = options;
  context_.store_id = store_id;
  context_.free_map = std::make_shared<FreeMap>(device_->size_bytes() / kPageBytes, kFirstDataPage);
  context_.io = std::make_unique<PageIo>(
      *device_, MergeLimits{options.merge_gap_bytes, options.merge_piece_bytes_max});
  if (options.arena_bytes_max > 0) {
    context_.cache = std::make_unique<SlotCache>(options.arena_bytes_max, options.replacement);
    context_.cache->SetWatch(
        {.comes = [this](std::span<std::byte> memory) { device_->AddReadMemory(memory); },
         .goes = [this](std::span<std::byte> memory) { device_->RemoveReadMemory(memory); }});
    context_.io->SetOnWrite(
        [cache = context_.cache.get()](PageIndex first, std::span<const std::byte> bytes) {
          cache->OnWrite(first, bytes);
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

absl::Status EngineImpl::Prepare() {
  MetaReader& reader = meta_->reader();
  std::int64_t largest_id = 0;  // that a row shows to be in use
  CAIRN_RETURN_IF_ERROR(LoadAllocation(reader, *context_.free_map,
                                       [&](const ParsedRegionKey& key, const RegionBits&) {
                                         largest_id = std::max(largest_id, key.segment.value());
                                       }));
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSessions, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const SessionId session, ParseSessionKey(key));
        largest_id = std::max(largest_id, session.value());
        ++session_count_;
        // One that is damaged shows when it is opened.
        const absl::StatusOr<SessionRow> row = DecodeSessionRow(value);
        if (row.ok() && !row->uid.empty()) creations_.Note(row->uid, session);
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
  LogInfo("engine sessions={} flash_used_bytes={} flash_size_bytes={} io_engine={}", session_count_,
          context_.free_map->used_count() * kPageBytes,
          context_.free_map->page_count() * kPageBytes, device_->name());
  return absl::OkStatus();
}

void EngineImpl::Start() {
  thread_ = StartThread("kv-engine", [this] { Run(); });
}

EngineImpl::~EngineImpl() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  device_->Wake();
  thread_.join();
  meta_.reset();  // what it still tells goes to the inbox
}

void EngineImpl::Post(Task task) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(task));
  }
  device_->Wake();
}

bool EngineImpl::RunInbox() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(inbox_);
  }
  for (const Task& task : tasks) task();
  return !tasks.empty();
}

void EngineImpl::Run() {
  constexpr std::chrono::microseconds kWaitMax{100000};  // a lost wake-up costs this much, no more
  while (true) {
    bool busy = RunInbox();
    busy = context_.io->RunReady() || busy;
    LookForLate();
    for (auto& [id, session] : attached_) session->Pump();
    if (context_.may_settle_doubts) SettleDoubts();
    // Placing has the lowest priority but one: only while the device has nothing else to do.
    if (!busy && device_->in_flight_count() == 0) {
      for (auto& [id, session] : attached_) busy = session->PlaceAtIdle() || busy;
      if (!busy && IsTimeToDefragment()) busy = defragmenter_->Step();
    }
    dram_peak_bytes_ = std::max(dram_peak_bytes_, DramUsedBytes());
    if (!busy && HasStopped()) return;  // nothing would end the wait
    device_->Poll(busy ? std::chrono::microseconds(0) : kWaitMax);
    if (Stopping()) {
      while (!attached_.empty()) {
        StopSession(attached_.begin()->first, Unavailable("the KV node is stopping"), [] {});
      }
    }
  }
}

void EngineImpl::LookForLate() {
  constexpr std::chrono::milliseconds kInterval{100};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kInterval;
  StopLateUnbound();
  DeleteAbandoned();
}

bool EngineImpl::HasStopped() {
  const bool moving = defragmenter_ != nullptr && defragmenter_->active();
  return Stopping() && attached_.empty() && ending_.empty() && serial_.empty() && !moving &&
         device_->in_flight_count() == 0;
}

bool EngineImpl::IsTimeToDefragment() {
  return defragmenter_ != nullptr && !Stopping() &&
         std::chrono::steady_clock::now() - last_operation_ >= context_.options.defragment_idle;
}

bool EngineImpl::Stopping() {
  MutexLock lock(mutex_);
  return stopping_ && inbox_.empty();
}

template <typename T, typename Fn>
void EngineImpl::PostRequest(Callback<T> done, Fn&& fn) {
  {
    MutexLock lock(mutex_);
    if (request_count_ < kInboxMax && !stopping_) {
      ++request_count_;
      inbox_.push_back([this, done = std::move(done), fn = std::forward<Fn>(fn)]() mutable {
        {
          MutexLock inner(mutex_);
          --request_count_;
        }
        fn(std::move(done));
      });
      done = nullptr;
    }
  }
  if (done != nullptr) {
    done(Unavailable("the KV node's inbox is full or it is stopping: try again"));
  } else {
    device_->Wake();
  }
}

void EngineImpl::PostOperation(SessionId session, Epoch epoch, QueuedOperation operation) {
  // Bounded by kChannelQueueMax for each channel. A std::function must be copyable, an operation is
  // not cheap to copy.
  auto shared = std::make_shared<QueuedOperation>(std::move(operation));
  Post([this, session, epoch, shared] {
    // Rule 12: the epoch is checked when the operation is applied; an ended channel has been told
    // so.
    last_operation_ = std::chrono::steady_clock::now();
    if (AttachedSession* attached = Find(session, epoch)) attached->Enqueue(std::move(*shared));
  });
}

void EngineImpl::PostDetach(SessionId session, Epoch epoch) {
  Post([this, session, epoch] {
    if (Find(session, epoch) == nullptr) return;
    StopSession(session, Cancelled("the channel was closed"), [] {});
  });
}

AttachedSession* EngineImpl::Find(SessionId session, Epoch epoch) {
  const auto found = attached_.find(session);
  if (found == attached_.end() || found->second->epoch() != epoch) return nullptr;
  return found->second.get();
}

void EngineImpl::StopSession(SessionId session, const absl::Status& why, Task then) {
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

void EngineImpl::EndAttachment(SessionId session) {
  const auto ended = ending_.find(session);
  NoteUnattached(session, ended->second->row().lifetime);
  ending_.erase(ended);
  if (context_.cache == nullptr) return;
  // Rule 5: what comes behind a rollback has the same parts with other bytes.
  context_.cache->ForgetAllOf(session);
  if (attached_.empty() && ending_.empty()) context_.cache->Trim();
}

std::vector<std::shared_ptr<const ArenaGranule>> EngineImpl::ArenaGranules() const {
  if (context_.cache == nullptr) return {};
  return context_.cache->arena().granules();
}

void EngineImpl::Serialise(SessionId session, Task task) {
  std::deque<Task>& waiting = serial_[session];
  waiting.push_back(std::move(task));
  if (waiting.size() == 1) waiting.front()();
}

void EngineImpl::EndSerial(SessionId session) {
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

template <typename T>
Callback<T> EngineImpl::EndingSerial(SessionId session, Callback<T> done) {
  return [this, session, done = std::move(done)](absl::StatusOr<T> result) {
    EndSerial(session);
    done(std::move(result));
  };
}
// Used by other files, too.
template Callback<std::monostate> EngineImpl::EndingSerial(SessionId session,
                                                           Callback<std::monostate> done);

void EngineImpl::PostAttach(AttachRequest request, Callback<Attachment> done) {
  PostRequest(std::move(done),
              [this, request = std::move(request)](const Callback<Attachment>& cb) {
                const SessionId session = request.session.id;
                Serialise(session, [this, request, cb] {
                  StartAttach(request, EndingSerial<Attachment>(request.session.id, cb));
                });
              });
}

void EngineImpl::CloseSession(SessionId session, Epoch epoch, Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, session, epoch](const Callback<std::monostate>& cb) {
    const auto found = attached_.find(session);
    if (found != attached_.end() && found->second->epoch() != epoch) {
      return cb(FailedPrecondition("session {} has epoch {}, not {}", session,
                                   found->second->epoch(), epoch));
    }
    StopSession(session, Cancelled("the session was closed"), [cb] { cb(std::monostate()); });
  });
}

void EngineImpl::DeleteSession(SessionRef session, Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, session](const Callback<std::monostate>& cb) {
    if (session.id == kTreeLock) return cb(NotFound("session {} is not in the store", session.id));
    if (std::ssize(deletions_) >= kInboxMax) {
      return cb(Unavailable("{} deletions wait, the most that may: try again", kInboxMax));
    }
    deletions_.push_back({session, cb});
    if (deletions_.size() == 1) StartDeletions();
  });
}

void EngineImpl::SealSession(SessionRef session, Callback<SealedSegment> done) {
  PostRequest(std::move(done), [this, session](const Callback<SealedSegment>& cb) {
    Serialise(session.id, [this, session, cb] {
      StartSeal(session, EndingSerial<SealedSegment>(session.id, cb));
    });
  });
}

void EngineImpl::SupersedeSession(Supersession request, Callback<std::monostate> done) {
  PostRequest(std::move(done), [this, request](const Callback<std::monostate>& cb) {
    const SessionId session = request.session.id;
    const SessionId replacement = request.replacement.id;
    if (session == replacement || session == kTreeLock || replacement == kTreeLock) {
      return cb(
          InvalidArgument("session {} cannot take the place of session {}", replacement, session));
    }
    // As deletions do: the tree first.
    Serialise(kTreeLock, [this, request, session, replacement, cb] {
      Serialise(session, [this, request, session, replacement, cb] {
        Serialise(replacement, [this, request, session, replacement, cb] {
          Callback<std::monostate> ending = EndingSerial(kTreeLock, cb);
          ending = EndingSerial(session, std::move(ending));
          StartSupersede(request, EndingSerial(replacement, std::move(ending)));
        });
      });
    });
  });
}

void EngineImpl::Create(CreateSession request, Callback<SessionRef> done) {
  if (request.uid.empty()) request.uid = RandomBytes(kUidBytes);
  PostRequest(std::move(done), [this, request = std::move(request)](Callback<SessionRef> cb) {
    if (!creations_.Begin(request.uid, cb)) return;
    cb = [this, uid = request.uid, cb = std::move(cb)](const absl::StatusOr<SessionRef>& created) {
      creations_.End(uid, created);
      cb(created);
    };
    if (request.parent_segment_id.value() == 0) return StartCreate(request, cb);
    Serialise(kTreeLock, [this, request, cb] {
      StartCreate(request, EndingSerial<SessionRef>(kTreeLock, cb));
    });
  });
}

void EngineImpl::ListSessions(ListDetail detail, Callback<std::vector<SessionInfo>> done) {
  PostRequest(std::move(done), [this, detail](const Callback<std::vector<SessionInfo>>& cb) {
    using Infos = std::vector<SessionInfo>;
    context_.Load<Infos>([detail](MetaReader& reader) { return LoadSessionInfos(reader, detail); },
                         [this, cb](absl::StatusOr<Infos> infos) {
                           if (infos.ok()) {
                             for (SessionInfo& info : *infos)
                               info.attached = attached_.contains(info.session_id);
                           }
                           cb(std::move(infos));
                         });
  });
}

void EngineImpl::GetStats(Callback<KvStats> done) {
  PostRequest(std::move(done), [this](const Callback<KvStats>& cb) { cb(Stats()); });
}

void EngineImpl::Attach(SessionId session, Epoch epoch, std::shared_ptr<ChannelObserver> observer,
                        Callback<std::shared_ptr<Channel>> done) {
  PostRequest(std::move(done), [this, session, epoch, observer = std::move(observer)](
                                   const Callback<std::shared_ptr<Channel>>& cb) {
    AttachedSession* attached = Find(session, epoch);
    if (attached == nullptr || attached->bound()) {
      return cb(
          FailedPrecondition("session {} is not attached with epoch {}, or its channel is bound "
                             "already: open it again",
                             session, epoch));
    }
    auto queued = std::make_shared<std::atomic<std::int32_t>>(0);
    attached->BindObserver(std::make_shared<CountingObserver>(observer, queued));
    cb(std::make_shared<EngineChannel>(*this, session, epoch, queued));
  });
}

}  // namespace cairn::kv
