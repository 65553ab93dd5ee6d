// Operations on whole sessions: create, delete, seal. Each is: what is attached ends, rows are read
// on the metadata thread, one batch is committed, the caller is answered. engine_attach.cc has open
// and resume.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "kv-node/engine/engine_core.h"

namespace cairn::kv {
namespace {

absl::Status CheckCreate(const CreateSession& request) {
  CAIRN_RETURN_IF_ERROR(request.key.Validate());
  CAIRN_RETURN_IF_ERROR(request.layout.Validate());
  if (request.layout.EntryBytes(0) > kPartBytesMax) {
    return InvalidArgument("an entry of {} bytes does not fit the largest part, {}",
                           request.layout.EntryBytes(0), kPartBytesMax);
  }
  if (request.key.kv_format != request.layout.kv_format) {
    return InvalidArgument("the key's KV format differs from the layout's");
  }
  if (std::ssize(request.creator) > kCreatorBytesMax) {
    return InvalidArgument("the creator has {} bytes, more than {}", request.creator.size(),
                           kCreatorBytesMax);
  }
  if (static_cast<std::int64_t>(request.label.size()) > kLabelBytesMax) {
    return InvalidArgument("the label has {} bytes, more than {}", request.label.size(),
                           kLabelBytesMax);
  }
  return absl::OkStatus();
}

// That the segment is of the session that the caller means, whatever its number says in this store.
absl::Status CheckParentSession(MetaReader& reader, AppId app, const CreateSession& request) {
  if (request.parent.id == SessionId()) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const SessionRow session, LoadSessionRow(reader, app, request.parent));
  SegmentId id = session.segment;
  while (id != request.parent_segment_id && id.value() != 0) {
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow segment, LoadSegmentRow(reader, id));
    id = segment.parent;
  }
  if (id.value() != 0) return absl::OkStatus();
  return FailedPrecondition("segment {} is not of session {}", request.parent_segment_id,
                            request.parent.id);
}

// The segment that holds the last token that the fork sees: the given one, or one above it.
absl::StatusOr<std::pair<SegmentId, SegmentRow>> LoadParent(MetaReader& reader, AppId app,
                                                            const CreateSession& request) {
  CAIRN_RETURN_IF_ERROR(CheckParentSession(reader, app, request));
  SegmentId id = request.parent_segment_id;
  CAIRN_ASSIGN_OR_RETURN(SegmentRow row, LoadSegmentRow(reader, id));
  CAIRN_RETURN_IF_ERROR(CheckApp(app, id, row));
  while (request.parent_token_count <= row.start && row.parent.value() != 0) {
    id = row.parent;
    CAIRN_ASSIGN_OR_RETURN(row, LoadSegmentRow(reader, id));
  }
  return std::pair(id, std::move(row));
}

absl::Status CheckParent(const CreateSession& request, const SegmentRow& parent) {
  if (!parent.sealed) {
    return FailedPrecondition("segment {} is not sealed", request.parent_segment_id);
  }
  if (!(parent.key == request.key) || !(parent.layout == request.layout)) {
    return FailedPrecondition("segment {} was made with another model, adapter or KV format",
                              request.parent_segment_id);
  }
  if (request.parent_token_count <= parent.start ||
      request.parent_token_count > parent.token_count) {
    return FailedPrecondition("segment {} can be forked at {} to {} tokens, not at {}",
                              request.parent_segment_id, parent.start + 1, parent.token_count,
                              request.parent_token_count);
  }
  return absl::OkStatus();
}

}  // namespace

void EngineCore::FindCreated(AppId app, const CreateSession& request,
                             const Callback<SessionId>& done) {
  context_.LoadToChange<SessionId>(
      [app, uid = request.uid](MetaReader& reader) -> absl::StatusOr<SessionId> {
        SessionId found;
        CAIRN_RETURN_IF_ERROR(
            reader.Scan(Family::kSessions, "",
                        [&](std::string_view key, std::string_view value) -> absl::Status {
                          // One that is damaged shows when it is opened.
                          const absl::StatusOr<SessionRow> row = DecodeSessionRow(value);
                          if (!row.ok() || row->app != app || row->uid != uid) {
                            return absl::OkStatus();
                          }
                          CAIRN_ASSIGN_OR_RETURN(found, ParseSessionKey(key));
                          return absl::OkStatus();
                        }));
        return found;
      },
      done);
}

void EngineCore::CreateOnTree(AppId app, const CreateSession& request,
                              const Callback<SessionRef>& done) {
  if (request.parent_segment_id.value() == 0) return StartCreate(app, request, done);
  Serialise(kTreeLock, [this, app, request, done] {
    StartCreate(app, request, EndingSerial<SessionRef>(kTreeLock, done));
  });
}

void EngineCore::StartCreate(AppId app, const CreateSession& request,
                             const Callback<SessionRef>& done) {
  absl::Status status = CheckCreate(request);
  if (status.ok() && SessionCountOf(app) >= context_.options.sessions_max) {
    status = ResourceExhausted(
        "{} sessions are stored, the most that may be: delete some that are not needed",
        SessionCountOf(app));
  }
  if (!status.ok()) return done(status);
  if (request.parent_segment_id.value() == 0) return CommitCreate(app, request, done);
  using Parent = std::pair<SegmentId, SegmentRow>;
  context_.LoadToChange<Parent>(
      [app, request](MetaReader& reader) { return LoadParent(reader, app, request); },
      [this, app, request, done](const absl::StatusOr<Parent>& parent) {
        if (!parent.ok()) return done(parent.status());
        CreateSession on_parent = request;
        on_parent.parent_segment_id = parent->first;
        const absl::Status fits = CheckParent(on_parent, parent->second);
        if (!fits.ok()) return done(fits);
        CommitCreate(app, on_parent, done);
      });
}

void EngineCore::CommitCreate(AppId app, const CreateSession& request,
                              const Callback<SessionRef>& done) {
  const absl::StatusOr<std::int64_t> id = context_.ids->Next(2);
  if (!id.ok()) return done(id.status());
  const SessionId session(*id);
  SessionRow row;
  row.app = app;
  row.uid = request.uid;
  row.segment = FirstSegmentOf(session);
  row.layout = request.layout;
  row.key = request.key;
  row.label = request.label;
  row.token_count = request.parent_token_count;
  row.create_time_us = context_.unix_microseconds();
  row.lifetime = request.lifetime;
  row.creator = request.creator;
  SegmentRow segment;
  segment.app = app;
  segment.parent = request.parent_segment_id;
  segment.start = request.parent_token_count;
  segment.token_count = request.parent_token_count;
  segment.key = request.key;
  segment.layout = request.layout;
  MetaBatch batch;
  batch.Put(Family::kSessions, SessionKeyBytes(session), EncodeSessionRow(row));
  batch.Put(Family::kSegments, SegmentHeadKey(row.segment), EncodeSegmentRow(segment));
  ++SessionCountOf(app);
  const SessionRef created{session, row.uid};
  context_.Commit(std::move(batch),
                  [this, app, created, lifetime = row.lifetime, done](const absl::Status& status) {
                    if (!status.ok()) {
                      --SessionCountOf(app);
                      return done(status);
                    }
                    NoteUnattached(created.id, lifetime);
                    done(created);
                  });
}

void EngineCore::StartSeal(AppId app, const SessionRef& ref, const Callback<SealedSegment>& done) {
  const SessionId session = ref.id;
  const auto attached = attached_.find(session);
  if (attached != attached_.end() &&
      !FailPoint("the node seals what is attached (rule 2)")) {  // rule 2
    const absl::Status is_meant = CheckMeant(app, ref, attached->second->row());
    if (!is_meant.ok()) return done(is_meant);
    return done(FailedPrecondition(
        "session {} is open: it seals with its own checkpoint, or close it first", session));
  }
  StopSession(session, absl::OkStatus(), [this, app, ref, done] {
    context_.LoadToChange<StoredSession>(
        [app, ref](MetaReader& reader) -> absl::StatusOr<StoredSession> {
          CAIRN_RETURN_IF_ERROR(LoadSessionRow(reader, app, ref).status());
          return LoadSession(reader, ref.id);
        },
        [this, ref, done](absl::StatusOr<StoredSession> stored) {
          if (!stored.ok()) return done(stored.status());
          CommitSeal(ref.id, *std::move(stored), done);
        });
  });
}

void EngineCore::CommitSeal(SessionId session, StoredSession stored,
                            const Callback<SealedSegment>& done) {
  StoredSegment& open = stored.chain.back();
  if (!open.row.has_checkpoint || open.row.token_count == open.row.start) {
    return done(SealedSegment{open.row.parent, open.row.start});
  }
  const absl::StatusOr<std::int64_t> id = context_.ids->Next();
  if (!id.ok()) return done(id.status());
  const SealedSegment sealed{open.id, open.row.token_count};
  SegmentRow next = open.row;
  next.parent = open.id;
  next.start = open.row.token_count;
  next.has_checkpoint = false;
  open.row.sealed = true;
  stored.row.segment = SegmentId(*id);
  stored.row.flash_bytes = 0;
  if (!FailPoint("a seal by the node keeps the epoch (rule 2)")) {
    stored.row.epoch = Epoch(stored.row.epoch.value() + 1);
  }
  stored.row.owner = {};
  MetaBatch batch;
  batch.Put(Family::kSegments, SegmentHeadKey(open.id), EncodeSegmentRow(open.row));
  batch.Put(Family::kSegments, SegmentHeadKey(stored.row.segment), EncodeSegmentRow(next));
  batch.Put(Family::kSegments, SegmentPolicyKey(stored.row.segment),
            EncodePolicyRow(stored.policy));
  batch.Put(Family::kSessions, SessionKeyBytes(session), EncodeSessionRow(stored.row));
  context_.Commit(std::move(batch), [this, sealed, done](const absl::Status& status) {
    if (!status.ok()) return done(status);
    context_.on_sealed(sealed.segment_id);
    done(sealed);
  });
}

Defragmenter::Sessions EngineCore::SessionsForDefragmenter() {
  return {
      .is_opening = [this] { return opening_count_ > 0; },
      .is_attached =
          [this](SegmentId segment) {
            const auto has = [segment](const auto& entry) {
              return entry.second->HasInChain(segment) &&
                     !FailPoint("defragmentation moves what a session reads");
            };
            return std::any_of(attached_.begin(), attached_.end(), has) ||
                   std::any_of(ending_.begin(), ending_.end(), has);
          },
      .with_tree_lock =
          [this](std::function<void(std::function<void()>)> task) {
            Serialise(kTreeLock,
                      [this, task = std::move(task)] { task([this] { EndSerial(kTreeLock); }); });
          },
  };
}

}  // namespace cairn::kv
