// Deletions, and when pages that rows named are free. Deletions that wait go together, with one
// sync: each asks all others who needs a segment, so one behind the other each would wait for a
// sync of its own.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/engine/state/segment_tree.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kDeletionsTogetherMax = 64;

}  // namespace

struct EngineCore::Deletion {
  AppId app;
  SessionRef session;
  Callback<std::monostate> done;
  absl::Status found;
  UnneededSegments freed;

  // Of the deletions in front of it `tree` knows.
  absl::Status Find(MetaReader& reader, SegmentTree& tree);
};

absl::Status EngineCore::Deletion::Find(MetaReader& reader, SegmentTree& tree) {
  CAIRN_ASSIGN_OR_RETURN(const SessionRow row, LoadSessionRow(reader, app, session));
  CAIRN_ASSIGN_OR_RETURN(freed, TakeOffUnneeded(reader, row.segment, tree));
  return absl::OkStatus();
}

struct EngineCore::Deletions {
  std::vector<Deletion> all;
  std::size_t open_count = 0;  // whose attachment has not ended
};

void EngineCore::StartDeletions() {
  // Behind forks: they ask, too, who needs a segment.
  Serialise(kTreeLock, [this] {
    auto together = std::make_shared<Deletions>();
    std::set<SessionId> sessions;
    std::deque<WaitingDeletion> later;
    for (WaitingDeletion& waiting : std::exchange(deletions_, {})) {
      const SessionId id = waiting.session.id;
      if (together->all.size() == kDeletionsTogetherMax || !sessions.insert(id).second) {
        later.push_back(std::move(waiting));
        continue;
      }
      Callback<std::monostate> done = EndingSerial(id, std::move(waiting.done));
      if (together->all.empty()) done = EndingSerial(kTreeLock, std::move(done));
      together->all.push_back({waiting.app, waiting.session, std::move(done), {}, {}});
    }
    deletions_ = std::move(later);
    together->open_count = together->all.size();
    for (std::size_t i = 0; i < together->all.size(); ++i) {
      Serialise(together->all[i].session.id, [this, together, i] { StopDeleted(together, i); });
    }
    if (!deletions_.empty()) StartDeletions();
  });
}

void EngineCore::StartDelete(AppId app, const SessionRef& session, Callback<std::monostate> done) {
  auto together = std::make_shared<Deletions>();
  together->all.push_back({app, session, std::move(done), {}, {}});
  together->open_count = 1;
  StopDeleted(together, 0);
}

void EngineCore::StopDeleted(const DeletionsRef& together, std::size_t index) {
  Deletion& deletion = together->all[index];
  const auto next = [this, together] {
    if (--together->open_count == 0) FindDeletions(together);
  };
  // What is refused must not end the attachment that is there.
  const auto attached = attached_.find(deletion.session.id);
  if (attached != attached_.end()) {
    deletion.found = CheckMeant(deletion.app, deletion.session, attached->second->row());
  }
  if (!deletion.found.ok()) return next();
  StopSession(deletion.session.id, NotFound("session {} was deleted", deletion.session.id), next);
}

void EngineCore::FindDeletions(const DeletionsRef& together) {
  context_.LoadToChange<std::monostate>(
      [together](MetaReader& reader) -> absl::StatusOr<std::monostate> {
        CAIRN_ASSIGN_OR_RETURN(SegmentTree tree, LoadSegmentTree(reader));
        for (Deletion& deletion : together->all) {
          if (deletion.found.ok()) deletion.found = deletion.Find(reader, tree);
        }
        return std::monostate();
      },
      [this, together](const absl::StatusOr<std::monostate>& loaded) {
        if (!loaded.ok()) return EndDeletions(together, loaded.status());
        CommitDeletions(together);
      });
}

void EngineCore::CommitDeletions(const DeletionsRef& together) {
  MetaBatch batch;
  for (const Deletion& deletion : together->all) {
    if (!deletion.found.ok()) continue;
    batch.Delete(Family::kSessions, SessionKeyBytes(deletion.session.id));
    for (const SegmentId segment : deletion.freed.segments) DeleteSegmentRows(batch, segment);
  }
  if (batch.empty()) return EndDeletions(together, absl::OkStatus());
  context_.Commit(std::move(batch), [this, together](const absl::Status& status) {
    for (const Deletion& deletion : together->all) {
      if (!deletion.found.ok()) continue;
      FreePages(deletion.freed.pages, status);
      if (!status.ok()) continue;
      --SessionCountOf(deletion.app);
      unattached_.erase(deletion.session.id);
      LogInfo("delete session={} freed_bytes={}", deletion.session.id,
              std::ssize(deletion.freed.pages) * kPageBytes);
    }
    EndDeletions(together, status);
  });
}

void EngineCore::FreePages(const std::vector<PageIndex>& pages, const absl::Status& committed) {
  for (const PageIndex page : pages) {
    if (committed.ok()) {
      context_.free_map->Free(page, 1);
    } else {
      context_.free_map->Doubt(page, 1);
    }
  }
}

// What became of the pages of batches that failed is known once a later batch is committed.
void EngineCore::SettleDoubts() {
  // What a session that failed has in flight may still go there.
  const auto failed = [](const auto& entry) { return entry.second->failed(); };
  if (!ending_.empty() || std::any_of(attached_.begin(), attached_.end(), failed)) return;
  context_.may_settle_doubts = false;
  const std::int64_t round = context_.free_map->StartSettling();
  using MapRef = std::shared_ptr<FreeMap>;
  context_.Load<MapRef>(
      [page_count = context_.free_map->page_count()](MetaReader& reader) -> absl::StatusOr<MapRef> {
        auto named = std::make_shared<FreeMap>(page_count, kFirstDataPage);
        CAIRN_RETURN_IF_ERROR(LoadAllocation(reader, *named));
        return named;
      },
      [this, round](const absl::StatusOr<MapRef>& named) {
        if (!named.ok()) return;  // another batch that is committed tries again
        const std::int64_t freed_count = context_.free_map->SettleDoubts(round, **named);
        LogInfo("pages of failed commits given back count={}", freed_count);
      });
}

void EngineCore::EndDeletions(const DeletionsRef& together, const absl::Status& status) {
  for (const Deletion& deletion : together->all) {
    const absl::Status& result = deletion.found.ok() ? status : deletion.found;
    if (result.ok()) {
      deletion.done(std::monostate());
    } else {
      deletion.done(result);
    }
  }
}

}  // namespace cairn::kv
