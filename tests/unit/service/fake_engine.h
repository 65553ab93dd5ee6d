// FakeEngine answers like an Engine, in a few hundred lines: sessions in maps, operations applied
// in order on a thread of its own, a checkpoint is a copy. What is durable lies in a FakeStore,
// which outlives the engine, so that a test can "kill" a KV node and start another on the same
// store. For tests of what lies in front of the engine.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/engine/engine.h"

namespace cairn::kv::fake {

struct FakeState {
  std::int64_t token_count = 0;
  OpSeq op_seq;
  std::map<std::tuple<std::int32_t, std::int32_t, ClusterId>, ClusterEntries> clusters;
  PutPolicyState policy;
  std::vector<std::int32_t> token_ids;
  std::vector<std::int64_t> next_cluster_ids;
};

struct FakeSession {
  CreateSession created;
  Epoch epoch;
  AttachAttempt owner;
  FakeState committed;
  SessionId superseded_by;  // last
};

// Used by one engine at a time, on its thread. A copy of it is an older copy of the store.
struct FakeStore {
  std::string id = std::string(kUidBytes, 's');
  std::map<SessionId, FakeSession> sessions;
};

class FakeChannel;

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(std::shared_ptr<FakeStore> store);
  ~FakeEngine() override;
  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  void Create(AppId app, CreateSession request, Callback<SessionRef> done) override;
  void OpenSession(AppId app, OpenRequest request, Callback<Attachment> done) override;
  void ResumeSession(AppId app, ResumeRequest request, Callback<Attachment> done) override;
  void CloseSession(AppId app, SessionId session, Epoch epoch,
                    Callback<std::monostate> done) override;
  void DeleteSession(AppId app, SessionRef session, Callback<std::monostate> done) override;
  void GetSession(AppId app, SessionRef session, ListDetail detail,
                  Callback<SessionInfo> done) override;
  void ListSessions(AppId app, ListDetail /*detail*/,
                    Callback<std::vector<SessionInfo>> done) override;
  void SealSession(AppId app, SessionRef session, Callback<SealedSegment> done) override;
  void SupersedeSession(AppId app, Supersession request, Callback<std::monostate> done) override;
  void GetStats(AppId app, Callback<KvStats> done) override;
  void Inspect(AppId app, SessionRef session, InspectionQuestion question,
               Callback<InspectionAnswer> done) override;
  std::vector<std::shared_ptr<const ArenaGranule>> ArenaGranules(AppId /*app*/) const override {
    return {};
  }
  bool has_arena() const override { return false; }
  void Attach(AppId app, SessionId session, Epoch epoch, std::shared_ptr<ChannelObserver> observer,
              Callback<std::shared_ptr<Channel>> done) override;

  // Operations of channels wait while held; everything else goes on.
  void HoldOperations();
  void ReleaseOperations();
  // Checkpoints are committed, but nobody hears of it.
  void DropCheckpointReplies();
  // The next `count` Create, OpenSession, ResumeSession, DeleteSession, SealSession and
  // SupersedeSession take effect, but their callers hear UNAVAILABLE, as if the reply was lost.
  void LoseReplies(int count);
  bool replies_were_lost();
  // The next `count` channels find no attachment.
  void RefuseChannels(int count);
  // Waits until a channel was attached and detached this many times.
  void WaitForDetachCount(int count);
  void WaitForQueuedCount(int count);
  // The most operations that ever waited in a channel.
  int queued_count_max();

 private:
  friend class FakeChannel;
  struct Attached {
    Epoch epoch;
    FakeState working;
    OpSeq refused_from;
    std::shared_ptr<ChannelObserver> observer;
  };
  using Task = std::function<void()>;

  bool RefusesChannel();
  void Post(Task task);
  void PostOperation(Task task);
  void Run();
  void Detach(SessionId session, Epoch epoch);
  absl::StatusOr<FakeSession*> FindSession(const SessionRef& ref) const;
  SessionInfo InfoOf(SessionId id, const FakeSession& session) const;
  absl::StatusOr<SessionRef> MakeSession(const CreateSession& request) const;
  Attachment NewEpoch(SessionId id, FakeSession* session, const AttachAttempt& attempt);
  // What is answered in place of `result`.
  template <typename T>
  absl::StatusOr<T> AnswerOf(absl::StatusOr<T> result);
  void Apply(SessionId session, Epoch epoch, OpSeq op_seq, ChangingOperation operation);
  void Answer(SessionId session, Epoch epoch, RequestId id, OpSeq after,
              const ReadOperation& operation);
  static absl::StatusOr<ReadReply> Read(const Attached& attached, const ReadOperation& operation);

  const std::shared_ptr<FakeStore> store_;
  std::map<SessionId, Attached> attached_;  // on the engine thread

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Task> operations_ CAIRN_GUARDED_BY(mutex_);
  bool held_ CAIRN_GUARDED_BY(mutex_) = false;
  bool drop_checkpoint_replies_ CAIRN_GUARDED_BY(mutex_) = false;
  int replies_to_lose_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool replies_were_lost_ CAIRN_GUARDED_BY(mutex_) = false;
  int channels_to_refuse_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  int detach_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  int queued_count_max_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace cairn::kv::fake
