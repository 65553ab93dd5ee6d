#include "tests/unit/service/fake_engine.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/random_bytes.h"
#include "common/base/thread.h"

namespace cairn::kv::fake {

class FakeChannel : public Channel {
 public:
  FakeChannel(FakeEngine* engine, SessionId session, Epoch epoch)
      : engine_(engine), session_(session), epoch_(epoch) {}
  ~FakeChannel() override {
    engine_->Post(
        [engine = engine_, session = session_, epoch = epoch_] { engine->Detach(session, epoch); });
  }
  FakeChannel(const FakeChannel&) = delete;
  FakeChannel& operator=(const FakeChannel&) = delete;

  bool Submit(OpSeq op_seq, ChangingOperation operation) override {
    engine_->PostOperation([engine = engine_, session = session_, epoch = epoch_, op_seq,
                            operation] { engine->Apply(session, epoch, op_seq, operation); });
    return true;
  }
  bool Submit(RequestId request_id, OpSeq after, ReadOperation operation) override {
    engine_->PostOperation(
        [engine = engine_, session = session_, epoch = epoch_, request_id, after, operation] {
          engine->Answer(session, epoch, request_id, after, operation);
        });
    return true;
  }

 private:
  FakeEngine* const engine_;
  const SessionId session_;
  const Epoch epoch_;
};

FakeEngine::FakeEngine(std::shared_ptr<FakeStore> store) : store_(std::move(store)) {
  thread_ = StartThread("fake-engine", [this] { Run(); });
}

FakeEngine::~FakeEngine() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void FakeEngine::Post(Task task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void FakeEngine::PostOperation(Task task) {
  MutexLock lock(mutex_);
  operations_.push_back(std::move(task));
  queued_count_max_ = std::max(queued_count_max_, static_cast<int>(operations_.size()));
  changed_.NotifyAll();
}

void FakeEngine::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && tasks_.empty() && (held_ || operations_.empty())) {
        changed_.Wait(mutex_);
      }
      const bool operation_first = !held_ && !operations_.empty();
      if (stopping_ && tasks_.empty()) return;
      std::deque<Task>& from = operation_first && !stopping_ ? operations_ : tasks_;
      task = std::move(from.front());
      from.pop_front();
    }
    task();
  }
}

void FakeEngine::HoldOperations() {
  MutexLock lock(mutex_);
  held_ = true;
}

void FakeEngine::ReleaseOperations() {
  MutexLock lock(mutex_);
  held_ = false;
  changed_.NotifyAll();
}

void FakeEngine::DropCheckpointReplies() {
  MutexLock lock(mutex_);
  drop_checkpoint_replies_ = true;
}

void FakeEngine::WaitForDetachCount(int count) {
  MutexLock lock(mutex_);
  while (detach_count_ < count) changed_.Wait(mutex_);
}

void FakeEngine::WaitForQueuedCount(int count) {
  MutexLock lock(mutex_);
  while (static_cast<int>(operations_.size()) < count) changed_.Wait(mutex_);
}

int FakeEngine::queued_count_max() {
  MutexLock lock(mutex_);
  return queued_count_max_;
}

void FakeEngine::LoseReplies(int count) {
  MutexLock lock(mutex_);
  replies_to_lose_ = count;
}

bool FakeEngine::replies_were_lost() {
  MutexLock lock(mutex_);
  return replies_were_lost_;
}

void FakeEngine::RefuseChannels(int count) {
  MutexLock lock(mutex_);
  channels_to_refuse_ = count;
}

bool FakeEngine::RefusesChannel() {
  MutexLock lock(mutex_);
  if (channels_to_refuse_ == 0) return false;
  --channels_to_refuse_;
  return true;
}

template <typename T>
absl::StatusOr<T> FakeEngine::AnswerOf(absl::StatusOr<T> result) {
  MutexLock lock(mutex_);
  if (replies_to_lose_ == 0) return result;
  --replies_to_lose_;
  replies_were_lost_ = true;
  return Unavailable("the reply was lost");
}

absl::StatusOr<FakeSession*> FakeEngine::FindSession(const SessionRef& ref) const {
  const auto found = store_->sessions.find(ref.id);
  if (found == store_->sessions.end()) return NotFound("there is no session {}", ref.id);
  if (IsMeant(ref, found->second.created.uid)) return &found->second;
  return FailedPrecondition("session {} is another one", ref.id);
}

absl::StatusOr<SessionRef> FakeEngine::MakeSession(const CreateSession& request) const {
  for (const auto& [id, session] : store_->sessions) {
    if (!request.uid.empty() && session.created.uid == request.uid)
      return SessionRef{id, request.uid};
  }
  if (request.parent.id != SessionId()) CAIRN_RETURN_IF_ERROR(FindSession(request.parent).status());
  const SessionId id(static_cast<std::int64_t>(store_->sessions.size()) + 1);
  CreateSession& created = store_->sessions[id].created;
  created = request;
  if (created.uid.empty()) created.uid = RandomBytes(kUidBytes);
  return SessionRef{id, created.uid};
}

void FakeEngine::Create(AppId app, CreateSession request, Callback<SessionRef> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, request = std::move(request), done = std::move(done)] {
    done(AnswerOf(MakeSession(request)));
  });
}

Attachment FakeEngine::NewEpoch(SessionId id, FakeSession* session, const AttachAttempt& attempt) {
  const auto old = attached_.find(id);
  if (old != attached_.end() && old->second.observer != nullptr) {
    old->second.observer->OnFailure(OpSeq(), FailedPrecondition("a newer epoch of {}", id));
  }
  session->epoch = Epoch(session->epoch.value() + 1);
  session->owner = attempt;
  attached_[id] = {session->epoch, session->committed, OpSeq(), nullptr};
  Attachment out;
  out.session_id = id;
  out.uid = session->created.uid;
  out.epoch = session->epoch;
  out.token_count = session->committed.token_count;
  out.op_seq = session->committed.op_seq;
  out.layout = session->created.layout;
  out.key = session->created.key;
  out.next_cluster_ids = session->committed.next_cluster_ids;
  out.segment_id = SegmentId(id.value() * 10);
  return out;
}

void FakeEngine::OpenSession(AppId app, OpenRequest request, Callback<Attachment> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, request = std::move(request), done = std::move(done)] {
    const absl::StatusOr<FakeSession*> session = FindSession(request.session);
    if (!session.ok()) return done(session.status());
    done(AnswerOf<Attachment>(NewEpoch(request.session.id, *session, request.attempt)));
  });
}

void FakeEngine::ResumeSession(AppId app, ResumeRequest request, Callback<Attachment> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, request = std::move(request), done = std::move(done)] {
    const absl::StatusOr<FakeSession*> found = FindSession({request.session_id, ""});
    if (!found.ok()) return done(found.status());
    FakeSession& session = **found;
    const bool is_last = request.attempt.owner.empty()
                             ? session.epoch == request.epoch
                             : session.owner.owner == request.attempt.owner &&
                                   session.owner.number < request.attempt.number;
    if (!is_last) {
      return done(FailedPrecondition("session {} is at epoch {}, not {}", request.session_id,
                                     session.epoch, request.epoch));
    }
    if (session.committed.op_seq < request.op_seq) {
      return done(DataLoss("session {} is at operation {}, not {}", request.session_id,
                           session.committed.op_seq, request.op_seq));
    }
    done(AnswerOf<Attachment>(NewEpoch(request.session_id, &session, request.attempt)));
  });
}

void FakeEngine::CloseSession(AppId app, SessionId session, Epoch epoch,
                              Callback<std::monostate> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, session, epoch, done = std::move(done)] {
    Detach(session, epoch);
    done(std::monostate());
  });
}

void FakeEngine::DeleteSession(AppId app, SessionRef session, Callback<std::monostate> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, session = std::move(session), done = std::move(done)] {
    const absl::Status found = FindSession(session).status();
    if (!found.ok()) return done(AnswerOf<std::monostate>(found));
    store_->sessions.erase(session.id);
    done(AnswerOf<std::monostate>(std::monostate()));
  });
}

void FakeEngine::SupersedeSession(AppId app, Supersession request, Callback<std::monostate> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, request = std::move(request), done = std::move(done)] {
    const absl::StatusOr<FakeSession*> session = FindSession(request.session);
    if (!session.ok()) return done(session.status());
    const absl::StatusOr<FakeSession*> replacement = FindSession(request.replacement);
    if (replacement.ok()) {
      (*session)->committed = (*replacement)->committed;
      (*session)->superseded_by = request.replacement.id;
      store_->sessions.erase(request.replacement.id);
    } else if ((*session)->superseded_by != request.replacement.id) {
      return done(replacement.status());
    }
    done(AnswerOf<std::monostate>(std::monostate()));
  });
}

SessionInfo FakeEngine::InfoOf(SessionId id, const FakeSession& session) const {
  SessionInfo info;
  info.session_id = id;
  info.uid = session.created.uid;
  info.label = session.created.label;
  info.key = session.created.key;
  info.layout = session.created.layout;
  info.token_count = session.committed.token_count;
  info.attached = attached_.contains(id);
  return info;
}

void FakeEngine::GetSession(AppId app, SessionRef session, ListDetail detail,
                            Callback<SessionInfo> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, session = std::move(session), detail, done = std::move(done)] {
    const absl::StatusOr<FakeSession*> found = FindSession(session);
    if (!found.ok()) return done(found.status());
    SessionInfo info = InfoOf(session.id, **found);
    // Pages it has none; but what was asked for shows.
    if (detail == ListDetail::kFlashUse) info.own_flash_bytes = 1;
    done(std::move(info));
  });
}

void FakeEngine::ListSessions(AppId app, ListDetail /*detail*/,
                              Callback<std::vector<SessionInfo>> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, done = std::move(done)] {
    std::vector<SessionInfo> out;
    for (auto it = store_->sessions.rbegin(); it != store_->sessions.rend(); ++it) {
      out.push_back(InfoOf(it->first, it->second));
    }
    done(std::move(out));
  });
}

void FakeEngine::SealSession(AppId app, SessionRef session, Callback<SealedSegment> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, session = std::move(session), done = std::move(done)] {
    const absl::StatusOr<FakeSession*> found = FindSession(session);
    if (!found.ok()) return done(found.status());
    if (attached_.contains(session.id)) {
      return done(FailedPrecondition("session {} is attached", session.id));
    }
    done(AnswerOf<SealedSegment>(
        SealedSegment{SegmentId(session.id.value() * 10), (*found)->committed.token_count}));
  });
}

void FakeEngine::Inspect(AppId /*app*/, SessionRef session, InspectionQuestion /*question*/,
                         Callback<InspectionAnswer> done) {
  Post([session, done = std::move(done)] {
    done(NotFound("session {}: nobody is attached to it", session.id));
  });
}

void FakeEngine::GetStats(AppId app, Callback<KvStats> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, done = std::move(done)] {
    KvStats stats;
    stats.io_engine = "memory";
    stats.attached_count = static_cast<std::int32_t>(attached_.size());
    done(stats);
  });
}

void FakeEngine::Attach(AppId app, SessionId session, Epoch epoch,
                        std::shared_ptr<ChannelObserver> observer,
                        Callback<std::shared_ptr<Channel>> done) {
  CAIRN_CHECK(app == kDefaultApp);
  Post([this, session, epoch, observer = std::move(observer), done = std::move(done)] {
    if (!store_->sessions.contains(session)) {
      done(NotFound("there is no session {}", session));
      return;
    }
    const auto found = attached_.find(session);
    if (found == attached_.end() || found->second.epoch != epoch || RefusesChannel()) {
      done(FailedPrecondition("epoch {} of session {} is an older one", epoch, session));
      return;
    }
    found->second.observer = observer;
    done(std::make_shared<FakeChannel>(this, session, epoch));
  });
}

void FakeEngine::Detach(SessionId session, Epoch epoch) {
  const auto found = attached_.find(session);
  if (found == attached_.end() || found->second.epoch != epoch) return;
  attached_.erase(found);
  MutexLock lock(mutex_);
  ++detach_count_;
  changed_.NotifyAll();
}

void FakeEngine::Apply(SessionId session, Epoch epoch, OpSeq op_seq, ChangingOperation operation) {
  const auto found = attached_.find(session);
  if (found == attached_.end() || found->second.epoch != epoch) return;
  Attached& attached = found->second;
  const std::shared_ptr<ChannelObserver> observer = attached.observer;
  observer->OnRoom();
  FakeState& state = attached.working;
  if (op_seq <= state.op_seq) {
    observer->OnPassedOver(op_seq);
    return;
  }
  if (op_seq.value() != state.op_seq.value() + 1) {
    observer->OnFailure(op_seq, FailedPrecondition("operation {} after {}", op_seq, state.op_seq));
    return;
  }
  if (const auto* append = std::get_if<Append>(&operation)) {
    if (append->layer >= store_->sessions[session].created.layout.layer_count) {
      observer->OnFailure(op_seq, InvalidArgument("layer {} is out of range", append->layer));
      return;
    }
    for (const ClusterEntries& more : append->clusters) {
      auto [it, added] = state.clusters.try_emplace(
          {append->layer, more.cluster.head, more.cluster.cluster_id}, more);
      if (added) continue;
      it->second.positions.AppendAll(more.positions);
      it->second.entries += more.entries;
    }
  } else if (const auto* policy = std::get_if<PutPolicyState>(&operation)) {
    state.policy = *policy;
  }
  state.op_seq = op_seq;
  const auto* checkpoint = std::get_if<Checkpoint>(&operation);
  if (checkpoint == nullptr) return;
  state.token_count = checkpoint->token_count;
  state.token_ids.resize(static_cast<std::size_t>(checkpoint->token_ids_start));
  state.token_ids.insert(state.token_ids.end(), checkpoint->token_ids.begin(),
                         checkpoint->token_ids.end());
  state.next_cluster_ids = checkpoint->next_cluster_ids;
  store_->sessions[session].committed = state;
  {
    MutexLock lock(mutex_);
    if (drop_checkpoint_replies_) return;
  }
  observer->OnCheckpointed(op_seq, {checkpoint->token_count, SegmentId()});
}

void FakeEngine::Answer(SessionId session, Epoch epoch, RequestId id, OpSeq after,
                        const ReadOperation& operation) {
  const auto found = attached_.find(session);
  if (found == attached_.end() || found->second.epoch != epoch) return;
  const std::shared_ptr<ChannelObserver> observer = found->second.observer;
  observer->OnRoom();
  if (after > found->second.working.op_seq) {
    observer->OnReply(id, FailedPrecondition("operation {} has not been applied", after));
    return;
  }
  observer->OnReply(id, Read(found->second, operation));
}

absl::StatusOr<ReadReply> FakeEngine::Read(const Attached& attached,
                                           const ReadOperation& operation) {
  const FakeState& state = attached.working;
  if (const auto* fetch = std::get_if<Fetch>(&operation)) {
    FetchReply reply;
    for (const ClusterRef& ref : fetch->clusters) {
      FetchedCluster cluster;
      cluster.cluster = ref;
      const auto found = state.clusters.find({fetch->layer, ref.head, ref.cluster_id});
      cluster.outcome =
          found == state.clusters.end() ? FetchOutcome::kUnknown : FetchOutcome::kFound;
      if (found != state.clusters.end()) {
        Span span;
        span.entry_count = found->second.positions.count();
        if (fetch->with_positions) span.positions = found->second.positions;
        auto bytes = std::make_shared<const std::string>(found->second.entries);
        span.bytes = std::as_bytes(std::span<const char>(bytes->data(), bytes->size()));
        span.owner = bytes;
        cluster.spans.push_back(std::move(span));
      }
      reply.clusters.push_back(std::move(cluster));
    }
    return reply;
  }
  if (std::holds_alternative<GetPolicyState>(operation)) {
    return PolicyStateReply{state.policy.version, state.policy.state, ""};
  }
  if (const auto* tokens = std::get_if<GetTokens>(&operation)) {
    const auto size = static_cast<std::int64_t>(state.token_ids.size());
    TokensReply reply;
    for (std::int64_t i = tokens->first; i < std::min(size, tokens->first + tokens->count); ++i) {
      reply.token_ids.push_back(state.token_ids[static_cast<std::size_t>(i)]);
    }
    return reply;
  }
  if (std::holds_alternative<GetIndex>(operation)) return IndexReply{};
  if (std::holds_alternative<FetchIndex>(operation)) {
    FetchReply reply;
    reply.clusters.emplace_back().cluster = {kAllHeads, ClusterId(1)};
    return reply;
  }
  if (std::holds_alternative<GetCarried>(operation)) return CarriedReply{};
  return ClustersReply{};
}

}  // namespace cairn::kv::fake
