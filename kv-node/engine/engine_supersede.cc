// A session takes over what another one holds: its row names the other's chain from then on, the
// other's row goes, and so do segments that nothing needs any more. One batch: before it both are
// as they were, behind it there is one.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"
#include "kv-node/engine/state/segment_tree.h"

namespace cairn::kv {
namespace {

// Whether what the session holds was the replacement's: a repeated call finds only that.
absl::StatusOr<bool> WasDone(MetaReader& reader, const SessionRow& row, SessionId replacement) {
  for (SegmentId id = row.segment; id.value() != 0;) {
    if (id == FirstSegmentOf(replacement)) return true;
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow segment, LoadSegmentRow(reader, id));
    id = segment.parent;
  }
  return false;
}

absl::StatusOr<std::vector<std::int32_t>> AllTokens(MetaReader& reader, const SessionRow& row) {
  return LoadTokens(reader, row.segment, row.token_count, 0, row.token_count);
}

// That nothing is given up but entries that can be computed again.
absl::Status CheckSameTokens(MetaReader& reader, const Supersession& request,
                             const SessionRow& session, const SessionRow& replacement) {
  if (!(session.key == replacement.key) || !(session.layout == replacement.layout)) {
    return FailedPrecondition(
        "session {} was made with another model, adapter or KV format than session {}",
        request.replacement.id, request.session.id);
  }
  if (session.token_count != replacement.token_count) {
    return FailedPrecondition("session {} has {} tokens, session {} has {}: they must be the same",
                              request.replacement.id, replacement.token_count, request.session.id,
                              session.token_count);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> held, AllTokens(reader, session));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> other, AllTokens(reader, replacement));
  if (held == other) return absl::OkStatus();
  return FailedPrecondition("sessions {} and {} have {} tokens each, but not the same",
                            request.session.id, request.replacement.id, session.token_count);
}

}  // namespace

struct EngineCore::SupersedePlan {
  std::optional<SessionRow> row;  // what the session's becomes; none: an earlier call did it
  UnneededSegments freed;

  static absl::StatusOr<SupersedePlan> Make(MetaReader& reader, AppId app,
                                            const Supersession& request);
};

absl::StatusOr<EngineCore::SupersedePlan> EngineCore::SupersedePlan::Make(
    MetaReader& reader, AppId app, const Supersession& request) {
  SupersedePlan plan;
  CAIRN_ASSIGN_OR_RETURN(SessionRow row, LoadSessionRow(reader, app, request.session));
  const absl::StatusOr<SessionRow> replacement = LoadSessionRow(reader, app, request.replacement);
  if (absl::IsNotFound(replacement.status())) {
    CAIRN_ASSIGN_OR_RETURN(const bool done, WasDone(reader, row, request.replacement.id));
    if (!done) return replacement.status();
    return plan;
  }
  CAIRN_RETURN_IF_ERROR(replacement.status());
  CAIRN_RETURN_IF_ERROR(CheckSameTokens(reader, request, row, *replacement));
  CAIRN_ASSIGN_OR_RETURN(SegmentTree tree, LoadSegmentTree(reader));
  CAIRN_ASSIGN_OR_RETURN(plan.freed, TakeOffUnneeded(reader, row.segment, tree));
  row.segment = replacement->segment;
  row.flash_bytes = replacement->flash_bytes;
  row.op_seq = replacement->op_seq;
  row.checkpoint_time_us = replacement->checkpoint_time_us;
  // What it holds from now on is a checkpoint of its own, also where it was a fork without one.
  if (row.lifetime == SessionLifetime::kFromCheckpoint) {
    row.lifetime = SessionLifetime::kPermanent;
  }
  // What owners of before still send belongs to neither history.
  row.epoch = Epoch(std::max(row.epoch, replacement->epoch).value() + 1);
  row.owner = {};
  plan.row = std::move(row);
  return plan;
}

void EngineCore::StartSupersede(AppId app, const Supersession& request,
                                const Callback<std::monostate>& done) {
  for (const SessionRef& ref : {request.session, request.replacement}) {
    const auto attached = attached_.find(ref.id);
    if (attached == attached_.end()) continue;
    const absl::Status is_meant = CheckMeant(app, ref, attached->second->row());
    if (!is_meant.ok()) return done(is_meant);
    return done(FailedPrecondition("session {} is open: close it first", ref.id));
  }
  // What still ends of an attachment ends first.
  StopSession(request.session.id, absl::OkStatus(), [this, app, request, done] {
    StopSession(request.replacement.id, absl::OkStatus(), [this, app, request, done] {
      context_.LoadToChange<SupersedePlan>(
          [app, request](MetaReader& reader) { return SupersedePlan::Make(reader, app, request); },
          [this, app, request, done](absl::StatusOr<SupersedePlan> plan) {
            if (!plan.ok()) return done(plan.status());
            if (!plan->row.has_value()) return done(std::monostate());
            CommitSupersede(app, request, *std::move(plan), done);
          });
    });
  });
}

void EngineCore::CommitSupersede(AppId app, const Supersession& request, SupersedePlan plan,
                                 const Callback<std::monostate>& done) {
  const SessionId session = request.session.id;
  const SessionId replacement = request.replacement.id;
  const bool is_permanent = plan.row->lifetime == SessionLifetime::kPermanent;
  MetaBatch batch;
  batch.Put(Family::kSessions, SessionKeyBytes(session), EncodeSessionRow(*plan.row));
  batch.Delete(Family::kSessions, SessionKeyBytes(replacement));
  for (const SegmentId segment : plan.freed.segments) DeleteSegmentRows(batch, segment);
  context_.Commit(std::move(batch),
                  [this, app, session, replacement, is_permanent,
                   pages = std::move(plan.freed.pages), done](const absl::Status& status) {
                    FreePages(pages, status);
                    if (!status.ok()) return done(status);
                    --SessionCountOf(app);
                    unattached_.erase(replacement);
                    if (is_permanent) unattached_.erase(session);
                    LogInfo("supersede session={} replacement={} freed_bytes={}", session,
                            replacement, std::ssize(pages) * kPageBytes);
                    done(std::monostate());
                  });
}

}  // namespace cairn::kv
