#include "tests/unit/engine/engine_harness.h"

#include <optional>

#include "common/base/check.h"

namespace cairn::kv {

struct TestSession::Observer : ChannelObserver {
  void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) override {
    MutexLock lock(mutex);
    done[op_seq] = checkpointed;
    changed.NotifyAll();
  }
  void OnFailure(OpSeq op_seq, const absl::Status& status) override {
    MutexLock lock(mutex);
    if (first_failure.ok()) first_failure = status;
    failed[op_seq] = status;
    changed.NotifyAll();
  }
  void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) override {
    MutexLock lock(mutex);
    replies.emplace(request_id, std::move(reply));
    changed.NotifyAll();
  }
  void OnRoom() override {
    MutexLock lock(mutex);
    changed.NotifyAll();
  }

  Mutex mutex;
  CondVar changed;
  std::map<OpSeq, Checkpointed> done CAIRN_GUARDED_BY(mutex);
  std::map<OpSeq, absl::Status> failed CAIRN_GUARDED_BY(mutex);
  std::map<RequestId, absl::StatusOr<ReadReply>> replies CAIRN_GUARDED_BY(mutex);
  absl::Status first_failure CAIRN_GUARDED_BY(mutex);
};

absl::StatusOr<std::unique_ptr<TestSession>> TestSession::Bind(Engine& engine, AppId app,
                                                               Attachment attachment) {
  auto session = std::make_unique<TestSession>();
  session->observer_ = std::make_shared<Observer>();
  session->next_op_seq_ = attachment.op_seq.value() + 1;
  CAIRN_ASSIGN_OR_RETURN(session->channel_, Await<std::shared_ptr<Channel>>([&](auto done) {
                           engine.Attach(app, attachment.session_id, attachment.epoch,
                                         session->observer_, std::move(done));
                         }));
  session->attachment_ = std::move(attachment);
  return session;
}

absl::StatusOr<std::unique_ptr<TestSession>> TestSession::Open(Engine& engine, SessionId id,
                                                               const AttachAttempt& attempt,
                                                               AppId app) {
  CAIRN_ASSIGN_OR_RETURN(Attachment attachment, Await<Attachment>([&](auto done) {
                           engine.OpenSession(app, {{id, ""}, attempt}, std::move(done));
                         }));
  return Bind(engine, app, std::move(attachment));
}

absl::StatusOr<std::unique_ptr<TestSession>> TestSession::Resume(Engine& engine, SessionId id,
                                                                 Epoch epoch) {
  return Resume(engine, {id, epoch, {}, OpSeq()});
}

absl::StatusOr<std::unique_ptr<TestSession>> TestSession::Resume(Engine& engine,
                                                                 const ResumeRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(Attachment attachment, Await<Attachment>([&](auto done) {
                           engine.ResumeSession(kDefaultApp, request, std::move(done));
                         }));
  return Bind(engine, kDefaultApp, std::move(attachment));
}

OpSeq TestSession::Send(const ChangingOperation& operation) {
  const OpSeq op_seq(next_op_seq_++);
  SendAs(op_seq, operation);
  return op_seq;
}

void TestSession::SendAs(OpSeq op_seq, const ChangingOperation& operation) {
  while (true) {
    ChangingOperation copy = operation;
    if (channel_->Submit(op_seq, std::move(copy))) return;
    // The room that comes back is counted before OnRoom: a read that is answered behind it shows
    // that there is some.
    MutexLock lock(observer_->mutex);
    observer_->changed.WaitUntil(observer_->mutex,
                                 std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
  }
}

absl::StatusOr<ReadReply> TestSession::Read(const ReadOperation& operation, OpSeq after) {
  const RequestId request(next_request_++);
  while (!channel_->Submit(request, after, operation)) {
    MutexLock lock(observer_->mutex);
    observer_->changed.WaitUntil(observer_->mutex,
                                 std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
  }
  MutexLock lock(observer_->mutex);
  while (!observer_->replies.contains(request)) {
    if (observer_->failed.contains(OpSeq(0))) return observer_->failed[OpSeq(0)];
    observer_->changed.Wait(observer_->mutex);
  }
  absl::StatusOr<ReadReply> reply = std::move(observer_->replies.at(request));
  observer_->replies.erase(request);
  return reply;
}

absl::StatusOr<Checkpointed> TestSession::WaitFor(OpSeq checkpoint) {
  MutexLock lock(observer_->mutex);
  while (true) {
    if (observer_->done.contains(checkpoint)) return observer_->done[checkpoint];
    if (observer_->failed.contains(checkpoint)) return observer_->failed[checkpoint];
    if (!observer_->first_failure.ok()) return observer_->first_failure;
    observer_->changed.Wait(observer_->mutex);
  }
}

absl::Status TestSession::failure() {
  MutexLock lock(observer_->mutex);
  return observer_->first_failure;
}

void TestSession::ForgetFailures() {
  MutexLock lock(observer_->mutex);
  std::erase_if(observer_->failed, [](const auto& failed) { return failed.first != OpSeq(0); });
  const auto end = observer_->failed.find(OpSeq(0));
  observer_->first_failure = end == observer_->failed.end() ? absl::OkStatus() : end->second;
}

std::string EntryBytes(const EntryLayout& layout, std::int64_t salt, std::int32_t layer,
                       std::int32_t head, std::int64_t position) {
  std::string out(static_cast<std::size_t>(layout.EntryBytes(head)), '\0');
  std::uint64_t x =
      static_cast<std::uint64_t>(salt) * 1000003 + static_cast<std::uint64_t>(layer) * 8191 +
      static_cast<std::uint64_t>(head + 1) * 131 + static_cast<std::uint64_t>(position);
  for (char& c : out) {
    x = x * 6364136223846793005 + 1442695040888963407;
    c = static_cast<char>(x >> 56);
  }
  return out;
}

std::string EntriesBytes(const EntryLayout& layout, std::int64_t salt, std::int32_t layer,
                         std::int32_t head, const Positions& positions) {
  std::string out;
  positions.ForEach([&](std::int64_t p) { out += EntryBytes(layout, salt, layer, head, p); });
  return out;
}

JoinedCluster Join(const EntryLayout& layout, const FetchedCluster& cluster) {
  JoinedCluster out;
  const std::int64_t entry_bytes = layout.EntryBytes(cluster.cluster.head);
  for (const Span& span : cluster.spans) {
    out.positions.AppendAll(span.positions);
    for (std::int64_t i = 0; i < span.entry_count; ++i) {
      out.entries.append(reinterpret_cast<const char*>(span.Entry(i, entry_bytes)),
                         static_cast<std::size_t>(entry_bytes));
    }
  }
  return out;
}

EntryLayout SmallLayout() {
  return {2, 2, 40, KvFormat::kF16};
}  // 160 bytes: entries straddle pages

SegmentKey SmallKey() {
  SegmentKey key;
  key.model_digest = std::string(kDigestBytes, 'm');
  key.rope_parameters = "none";
  return key;
}

}  // namespace cairn::kv
