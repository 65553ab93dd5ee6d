// Attaching to a session: open and resume. What is attached ends, rows are read on the metadata
// thread, the new epoch with its owner is committed, the caller is answered.
#include <utility>

#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"

namespace cairn::kv {

bool EngineCore::AttachRequest::IsOfOwnerOf(const SessionRow& row) const {
  return !attempt.owner.empty() && attempt.owner == row.owner.owner;
}

absl::Status EngineCore::AttachRequest::Check(const SessionRow& row) const {
  CAIRN_RETURN_IF_ERROR(CheckMeant(app, session, row));
  // Calls may overtake each other on their way here: the owner has given up those before its last.
  if (IsOfOwnerOf(row) && attempt.number <= row.owner.number &&
      !FailPoint("an attempt that comes late attaches (rule 13)")) {
    return FailedPrecondition(
        "session {}: this attempt to attach, number {}, came behind number {} of the same owner",
        session.id, attempt.number, row.owner.number);
  }
  return lost ? CheckLost(row) : absl::OkStatus();
}

// Rule 13.
absl::Status EngineCore::AttachRequest::CheckLost(const SessionRow& row) const {
  const bool is_last =
      attempt.owner.empty()
          ? row.epoch == lost->epoch || FailPoint("a resume needs no epoch (rule 13)")
          : IsOfOwnerOf(row) || FailPoint("a resume needs no owner (rule 13)");
  // Every attach makes a higher epoch: with ours, or one before it, somebody else has another copy.
  if (!is_last && !attempt.owner.empty() && row.epoch <= lost->epoch) {
    return DataLoss(
        "session {} has epoch {} of another owner, and this one had epoch {}: the store is an "
        "older copy of what it was; put the newer one back, or open the session and go on from its "
        "{} tokens",
        session.id, row.epoch, lost->epoch, row.token_count);
  }
  if (!is_last) {
    return FailedPrecondition("session {} has epoch {}, of another owner than epoch {}", session.id,
                              row.epoch, lost->epoch);
  }
  if (row.op_seq >= lost->op_seq ||
      FailPoint("a resume goes on in an older copy of the store (rule 13)")) {
    return absl::OkStatus();
  }
  return DataLoss(
      "session {} is at its checkpoint of operation {}, but that of operation {} was acknowledged: "
      "the store is an older copy of what it was; put the newer one back, or open the session and "
      "go on from its {} tokens",
      session.id, row.op_seq, lost->op_seq, row.token_count);
}

void EngineCore::OpenSession(AppId app, OpenRequest request, Callback<Attachment> done) {
  PostAttach({app, std::move(request.session), std::move(request.attempt), std::nullopt},
             std::move(done));
}

void EngineCore::ResumeSession(AppId app, ResumeRequest request, Callback<Attachment> done) {
  PostAttach({app,
              {request.session_id, ""},
              std::move(request.attempt),
              AttachRequest::Lost{request.epoch, request.op_seq}},
             std::move(done));
}

void EngineCore::StartAttach(const AttachRequest& request, const Callback<Attachment>& done) {
  const SessionId session = request.session.id;
  const auto attached = attached_.find(session);
  if (attached != attached_.end()) {
    // What is refused must not end the attachment that is there.
    const absl::Status may = request.Check(attached->second->row());
    if (!may.ok() && !FailPoint("a resume ends a newer owner's attachment (rule 13)")) {
      return done(may);
    }
    // Made by an attempt whose caller did not hear of it. A new epoch would take as long again, and
    // where that is longer than a caller waits there would never be an end.
    if (request.IsOfOwnerOf(attached->second->row()) &&
        attached->second->TakeUnbound(request.attempt)) {
      return done(attached->second->attachment());
    }
  }
  const auto open = static_cast<std::int32_t>(attached_.size()) + opening_count_ -
                    (attached != attached_.end() ? 1 : 0);
  if (open >= context_.options.attached_sessions_max && !StopUnbound(session)) {
    return done(ResourceExhausted("{} sessions are open, the most that may be: close one", open));
  }
  if (FailPoint("an open goes on with the attachment that is there (rule 4)") && !request.lost &&
      attached != attached_.end()) {
    return done(attached->second->attachment());
  }
  ++opening_count_;
  StopSession(
      session, FailedPrecondition("session {} was opened by another owner", session),
      [this, session, request, done] {
        context_.LoadToChange<LoadedState>(
            [app = request.app, ref = request.session, session, free_map = context_.free_map,
             return_freed_memory =
                 context_.return_freed_memory](MetaReader& reader) -> absl::StatusOr<LoadedState> {
              if (!FailPoint("damage of another app's session tells that it is there")) {
                CAIRN_RETURN_IF_ERROR(LoadSessionRow(reader, app, ref).status());
              }
              CAIRN_ASSIGN_OR_RETURN(StoredSession stored, LoadSession(reader, session));
              absl::StatusOr<LoadedState> state = BuildState(free_map, std::move(stored));
              // Rows as they were read are large, and so is what closed before.
              return_freed_memory();
              if (state.ok()) return state;
              return Annotate(state.status(), fmt::format("session {}", session));
            },
            [this, request, done](absl::StatusOr<LoadedState> loaded) {
              --opening_count_;
              if (!loaded.ok()) return done(loaded.status());
              FinishAttach(request, *std::move(loaded), done);
            });
      });
}

void EngineCore::FinishAttach(const AttachRequest& request, LoadedState loaded,
                              const Callback<Attachment>& done) {
  const absl::Status may = request.Check(loaded.row);
  if (!may.ok()) return done(may);
  const SessionId session = request.session.id;
  loaded.row.epoch = Epoch(loaded.row.epoch.value() + 1);
  loaded.row.owner.owner = request.attempt.owner;
  if (!FailPoint("the number of an attempt to attach is not stored (rule 13)")) {
    loaded.row.owner.number = request.attempt.number;
  }
  if (loaded.row.uid.empty()) loaded.row.uid = random_bytes_(kUidBytes);
  MetaBatch batch;
  if (!FailPoint("the epoch of an attachment is not stored (rule 4)")) {
    batch.Put(Family::kSessions, SessionKeyBytes(session), EncodeSessionRow(loaded.row));
  }
  auto shared = std::make_shared<LoadedState>(std::move(loaded));
  ++opening_count_;
  // Rule 4: the epoch is durable, behind the old epoch's batches, before the reply.
  context_.Commit(std::move(batch), [this, session, shared, done](const absl::Status& status) {
    --opening_count_;
    if (!status.ok()) return done(status);
    auto attached = std::make_unique<AttachedSession>(context_, session, std::move(*shared));
    const Attachment attachment = attached->attachment();
    attached_[session] = std::move(attached);
    unattached_.erase(session);
    LogInfo("open session={} epoch={} token_count={}", session, attachment.epoch,
            attachment.token_count);
    done(attachment);
  });
}

bool EngineCore::StopUnbound(SessionId except) {
  for (const auto& [id, session] : attached_) {
    if (id == except || session->bound()) continue;
    StopSession(id, Cancelled("the channel did not come"), [] {});
    return true;
  }
  return false;
}

void EngineCore::StopLateUnbound() {
  const auto made_before = context_.now - context_.options.channel_wait_max;
  std::vector<SessionId> late;
  for (const auto& [id, session] : attached_) {
    if (!session->bound() && session->unbound_since() <= made_before) late.push_back(id);
  }
  for (const SessionId id : late) {
    LogInfo("close session={} reason=\"no channel came in {} ms\"", id,
            context_.options.channel_wait_max.count());
    StopSession(id, Cancelled("the channel did not come"), [] {});
  }
}

}  // namespace cairn::kv
