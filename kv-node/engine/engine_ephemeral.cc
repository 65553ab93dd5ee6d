// Ephemeral sessions: they go when nobody has been attached to them for a while, because their
// owner has died or never came. A living owner that lost its connection comes back within that
// time; so does one that lost the KV node, whose start counts like the end of an attachment.
#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"

namespace cairn::kv {
namespace {

// Each deletion looks through all segments.
constexpr std::size_t kDeletedAtOnceMax = 8;

}  // namespace

void EngineCore::NoteUnattached(SessionId session, SessionLifetime lifetime) {
  if (lifetime == SessionLifetime::kPermanent) return;
  unattached_[session] = context_.now;
}

void EngineCore::NoteAskedAgain(const RecentCreations::Key& creation) {
  const auto found = unattached_.find(creations_.Find(creation));
  if (found != unattached_.end()) found->second = context_.now;
}

bool EngineCore::IsAbandoned(SessionId session) const {
  const auto found = unattached_.find(session);
  return found != unattached_.end() &&
         context_.now - found->second >= context_.options.abandoned_after;
}

void EngineCore::DeleteAbandoned() {
  std::vector<SessionId> abandoned;
  for (const auto& [session, since] : unattached_) {
    if (abandoned.size() == kDeletedAtOnceMax) break;
    if (IsAbandoned(session) && !serial_.contains(session)) abandoned.push_back(session);
  }
  for (const SessionId session : abandoned) {
    const auto deleted = [session](const absl::StatusOr<std::monostate>& done) {
      if (done.ok() || absl::IsNotFound(done.status())) return;
      LogWarning("delete abandoned session={}: {}", session, Message(done.status()));
    };
    Serialise(kTreeLock, [this, session, deleted] {
      Serialise(session, [this, session, deleted] {
        DeleteIfAbandoned(session, EndingSerial<std::monostate>(
                                       session, EndingSerial<std::monostate>(kTreeLock, deleted)));
      });
    });
  }
}

void EngineCore::DeleteIfAbandoned(SessionId session, const Callback<std::monostate>& done) {
  // Somebody came meanwhile, or deleted it.
  if (!IsAbandoned(session) || Stopping()) return done(std::monostate());
  // Should it fail, it is tried again after as long a time.
  NoteUnattached(session, SessionLifetime::kEphemeral);
  // Its creation may be repeated yet, by a caller that heard nothing for as long: it makes another.
  creations_.Forget(session);
  context_.LoadToChange<SessionRow>(
      [session](MetaReader& reader) { return LoadSessionRow(reader, session); },
      [this, session, done](const absl::StatusOr<SessionRow>& row) {
        if (!row.ok()) return done(row.status());
        // A checkpoint was committed though it seemed to have failed.
        if (row->lifetime == SessionLifetime::kPermanent) {
          unattached_.erase(session);
          creations_.Note({row->app, row->uid}, session);
          return done(std::monostate());
        }
        LogInfo("delete session={} reason=\"it is ephemeral, and nobody is attached\"", session);
        StartDelete(row->app, {session}, done);
      });
}

}  // namespace cairn::kv
