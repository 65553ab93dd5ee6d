// EngineCore is the engine without a thread: its inbox, the table of attached sessions, and the
// operations on whole sessions. Its owner calls RunOnce again and again; EngineThread is one that
// does so on a thread of its own, a simulation another. See engine.h for what callers see.
//
// Threading:  "the engine thread" is whoever calls RunOnce, one thread from the first call on.
// Time:       what RunOnce is told; it never goes back.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/engine/defragment/defragmenter.h"
#include "kv-node/engine/engine.h"
#include "kv-node/engine/engine_context.h"
#include "kv-node/engine/recent_creations.h"
#include "kv-node/engine/session/attached_session.h"

namespace cairn::kv {

// In `serial_`, what asks or changes who needs a segment: forks, deletions, defragmentation.
inline constexpr SessionId kTreeLock{0};
// The open segment of a session that was just created.
constexpr SegmentId FirstSegmentOf(SessionId session) { return SegmentId(session.value() + 1); }

class EngineCore : public Engine {
 public:
  EngineCore(const EngineOptions& options, const StoreId& store_id, EngineWorld world);
  // Behind HasStopped, or when RunOnce was never called.
  ~EngineCore() override;
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Before all else: reads allocation records and reserves ids.
  absl::Status Prepare(EngineTime now);

  // One pass over what was posted, what the device has completed, and what each session can do now.
  // Then it waits for the device or for a post, for at most `wait_max`; not at all when there may
  // be more to do at once. False: neither inbox nor device had anything, and nothing was placed or
  // moved; more may be posted already.
  bool RunOnce(EngineTime now, std::chrono::microseconds wait_max = std::chrono::microseconds(0));
  // Takes no more requests, and ends the attachments. Any thread.
  void StartStop();
  // Behind StartStop: nothing is left to be done. The engine thread's.
  bool HasStopped();

  void Create(AppId app, CreateSession request, Callback<SessionRef> done) override;
  void OpenSession(AppId app, OpenRequest request, Callback<Attachment> done) override;
  void ResumeSession(AppId app, ResumeRequest request, Callback<Attachment> done) override;
  void CloseSession(AppId app, SessionId session, Epoch epoch,
                    Callback<std::monostate> done) override;
  void DeleteSession(AppId app, SessionRef session, Callback<std::monostate> done) override;
  void GetSession(AppId app, SessionRef session, ListDetail detail,
                  Callback<SessionInfo> done) override;
  void ListSessions(AppId app, ListDetail detail, Callback<std::vector<SessionInfo>> done) override;
  void SealSession(AppId app, SessionRef session, Callback<SealedSegment> done) override;
  void SupersedeSession(AppId app, Supersession request, Callback<std::monostate> done) override;
  void GetStats(AppId app, Callback<KvStats> done) override;
  void Inspect(AppId app, SessionRef session, InspectionQuestion question,
               Callback<InspectionAnswer> done) override;
  std::vector<std::shared_ptr<const ArenaGranule>> ArenaGranules(AppId app) const override;
  bool has_arena() const override { return context_.caches != nullptr; }
  void Attach(AppId app, SessionId session, Epoch epoch, std::shared_ptr<ChannelObserver> observer,
              Callback<std::shared_ptr<Channel>> done) override;

  // For channels: any thread.
  void PostOperation(SessionId session, Epoch epoch, QueuedOperation operation);
  void PostDetach(SessionId session, Epoch epoch);

 private:
  struct Deletion;
  struct Deletions;
  using DeletionsRef = std::shared_ptr<Deletions>;
  struct WaitingDeletion {
    AppId app;
    SessionRef session;
    Callback<std::monostate> done;
  };
  using Task = std::function<void()>;
  // Takes a request from outside: UNAVAILABLE through `done` when the inbox is full.
  template <typename T, typename Fn>
  void PostRequest(Callback<T> done, Fn&& fn);
  void Post(Task task);
  bool RunInbox();
  bool PlaceAtIdle();
  bool Stopping();
  void StopAttached();
  bool IsTimeToDefragment();
  std::int64_t DramUsedBytes() const;

  // Operations on one session run one after the other.
  void Serialise(SessionId session, Task task);
  void EndSerial(SessionId session);
  template <typename T>
  Callback<T> EndingSerial(SessionId session, Callback<T> done);

  // ---- engine_sessions.cc ----
  // Behind whatever changes the segments that it stands on.
  void CreateOnTree(AppId app, const CreateSession& request, const Callback<SessionRef>& done);
  // The session of the request's uid that is stored; 0: none.
  void FindCreated(AppId app, const CreateSession& request, const Callback<SessionId>& done);
  void StartCreate(AppId app, const CreateSession& request, const Callback<SessionRef>& done);
  void CommitCreate(AppId app, const CreateSession& request, const Callback<SessionRef>& done);
  void StartSeal(AppId app, const SessionRef& session, const Callback<SealedSegment>& done);
  void CommitSeal(SessionId session, StoredSession stored, const Callback<SealedSegment>& done);
  // ---- engine_deletions.cc ----
  // Those of `deletions_`, or as many of them as go together.
  void StartDeletions();
  // One of whose session, and of kTreeLock, it is the turn.
  void StartDelete(AppId app, const SessionRef& session, Callback<std::monostate> done);
  // Ends the attachment, unless it is not of the session that is meant.
  void StopDeleted(const DeletionsRef& together, std::size_t index);
  void FindDeletions(const DeletionsRef& together);
  void CommitDeletions(const DeletionsRef& together);
  static void EndDeletions(const DeletionsRef& together, const absl::Status& status);
  // Behind the batch that ceases to name them.
  void FreePages(const std::vector<PageIndex>& pages, const absl::Status& committed);
  // Frees the pages that are doubted and that no row names.
  void SettleDoubts();
  // ---- engine_supersede.cc ----
  struct SupersedePlan;
  void StartSupersede(AppId app, const Supersession& request, const Callback<std::monostate>& done);
  void CommitSupersede(AppId app, const Supersession& request, SupersedePlan plan,
                       const Callback<std::monostate>& done);
  // ---- engine_ephemeral.cc ----
  // Nobody is attached to the session any more, or not yet.
  void NoteUnattached(SessionId session, SessionLifetime lifetime);
  // Whoever repeats a creation is there.
  void NoteAskedAgain(const RecentCreations::Key& creation);
  // Deletes ephemeral sessions that nobody has been attached to for abandoned_after, some of them.
  void DeleteAbandoned();
  void DeleteIfAbandoned(SessionId session, const Callback<std::monostate>& done);
  bool IsAbandoned(SessionId session) const;

  // Ends an attachment, if there is one, and goes on when its I/O has ended.
  void StopSession(SessionId session, const absl::Status& why, Task then);
  void EndAttachment(SessionId session);

  // ---- engine_attach.cc ----
  // An OpenRequest or a ResumeRequest.
  struct AttachRequest {
    struct Lost {
      Epoch epoch;
      OpSeq op_seq;
    };
    AppId app;
    SessionRef session;
    AttachAttempt attempt;
    std::optional<Lost> lost;  // of a resume

    // Whether it may follow what is stored.
    absl::Status Check(const SessionRow& row) const;
    // The same for a resume.
    absl::Status CheckLost(const SessionRow& row) const;
    bool IsOfOwnerOf(const SessionRow& row) const;
  };
  void PostAttach(AttachRequest request, Callback<Attachment> done);
  void StartAttach(const AttachRequest& request, const Callback<Attachment>& done);
  void FinishAttach(const AttachRequest& request, LoadedState loaded,
                    const Callback<Attachment>& done);
  // Ends an attachment that has no channel, to make room. False: each has one.
  bool StopUnbound(SessionId except);
  // Ends those that have waited for their channel for too long.
  void StopLateUnbound();
  // From time to time: what has waited for too long.
  void LookForLate();

  AttachedSession* Find(SessionId session, Epoch epoch);
  // The same, if it is the app's.
  AttachedSession* Find(AppId app, SessionId session, Epoch epoch);
  Defragmenter::Sessions SessionsForDefragmenter();
  KvStats Stats(AppId app) const;
  // How many are stored.
  std::int32_t& SessionCountOf(AppId app) { return session_counts_[app]; }

  EngineContext context_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<MetaStore> meta_;
  const std::function<std::string(std::int64_t byte_count)> random_bytes_;

  Mutex mutex_;
  std::vector<Task> inbox_ CAIRN_GUARDED_BY(mutex_);
  std::int32_t request_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;

  // Of the engine thread.
  std::map<SessionId, std::unique_ptr<AttachedSession>> attached_;
  std::map<SessionId, std::unique_ptr<AttachedSession>> ending_;  // their last I/O is in flight
  std::map<SessionId, std::deque<Task>> serial_;
  std::deque<WaitingDeletion> deletions_;       // kInboxMax at most
  std::unique_ptr<Defragmenter> defragmenter_;  // null: switched off
  EngineTime last_operation_;
  EngineTime next_look_;  // for what is late
  RecentCreations creations_;
  // Ephemeral sessions that nobody is attached to, since when.
  std::map<SessionId, EngineTime> unattached_;
  std::int32_t opening_count_ = 0;
  std::map<AppId, std::int32_t> session_counts_;
  std::int64_t dram_peak_bytes_ = 0;
};

template <typename T, typename Fn>
void EngineCore::PostRequest(Callback<T> done, Fn&& fn) {
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

template <typename T>
Callback<T> EngineCore::EndingSerial(SessionId session, Callback<T> done) {
  return [this, session, done = std::move(done)](absl::StatusOr<T> result) {
    EndSerial(session);
    done(std::move(result));
  };
}

}  // namespace cairn::kv
