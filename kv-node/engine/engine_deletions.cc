// Deletions. Those that wait go together, with one sync: each asks all others who needs a segment,
// so one behind the other each would wait for a sync of its own.
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "common/log/log.h"
#include "kv-node/engine/engine_impl.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kDeletionsTogetherMax = 64;

// Who stands on whom.
struct Tree {
  std::map<SegmentId, SegmentId> parent_of;
  std::map<SegmentId, int> child_count;
};

absl::StatusOr<Tree> LoadTree(MetaReader& reader) {
  Tree tree;
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSegments, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const std::optional<SegmentId> id, ParseSegmentHeadKey(key));
        if (!id) return absl::OkStatus();
        CAIRN_ASSIGN_OR_RETURN(const SegmentRow segment, DecodeSegmentRow(value));
        tree.parent_of[*id] = segment.parent;
        ++tree.child_count[segment.parent];
        return absl::OkStatus();
      }));
  return tree;
}

}  // namespace

// What goes with a session: its open segment and those parents that nothing else needs.
struct EngineImpl::Deletion {
  SessionRef session;
  Callback<std::monostate> done;
  absl::Status found;
  std::vector<SegmentId> segments;
  std::vector<PageIndex> pages;

  // Of the deletions in front of it `tree` knows.
  absl::Status Find(MetaReader& reader, Tree& tree);
  absl::Status AddSegment(MetaReader& reader, SegmentId id);
};

absl::Status EngineImpl::Deletion::Find(MetaReader& reader, Tree& tree) {
  CAIRN_ASSIGN_OR_RETURN(const SessionRow row, LoadSessionRow(reader, session.id));
  CAIRN_RETURN_IF_ERROR(CheckUid(session, row));
  std::vector<SegmentId> parents;
  for (SegmentId id = row.segment; id.value() != 0; id = parents.back()) {
    CAIRN_RETURN_IF_ERROR(AddSegment(reader, id));
    const SegmentId parent = tree.parent_of[id];
    parents.push_back(parent);
    // A sealed parent goes when no other segment names it as parent.
    if (tree.child_count[parent] > 1) break;
  }
  for (const SegmentId parent : parents) --tree.child_count[parent];
  return absl::OkStatus();
}

absl::Status EngineImpl::Deletion::AddSegment(MetaReader& reader, SegmentId id) {
  segments.push_back(id);
  return reader.Scan(Family::kPools, SegmentPrefix(id),
                     [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                       CAIRN_ASSIGN_OR_RETURN(const ParsedRegionKey key, ParseRegionKey(key_bytes));
                       CAIRN_ASSIGN_OR_RETURN(const RegionBits bits, DecodeRegion(value));
                       for (std::int64_t i = 0; i < kRegionPages; ++i) {
                         if (!bits[static_cast<std::size_t>(i)]) continue;
                         pages.emplace_back(key.region * kRegionPages + i);
                       }
                       return absl::OkStatus();
                     });
}

struct EngineImpl::Deletions {
  std::vector<Deletion> all;
  std::size_t open_count = 0;  // whose attachment has not ended
};

void EngineImpl::StartDeletions() {
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
      together->all.push_back({waiting.session, std::move(done), {}, {}, {}});
    }
    deletions_ = std::move(later);
    together->open_count = together->all.size();
    for (std::size_t i = 0; i < together->all.size(); ++i) {
      Serialise(together->all[i].session.id, [this, together, i] { StopDeleted(together, i); });
    }
    if (!deletions_.empty()) StartDeletions();
  });
}

void EngineImpl::StartDelete(const SessionRef& session, Callback<std::monostate> done) {
  auto together = std::make_shared<Deletions>();
  together->all.push_back({session, std::move(done), {}, {}, {}});
  together->open_count = 1;
  StopDeleted(together, 0);
}

void EngineImpl::StopDeleted(const DeletionsRef& together, std::size_t index) {
  Deletion& deletion = together->all[index];
  const auto next = [this, together] {
    if (--together->open_count == 0) FindDeletions(together);
  };
  // What is refused must not end the attachment that is there.
  const auto attached = attached_.find(deletion.session.id);
  if (attached != attached_.end()) {
    deletion.found = CheckUid(deletion.session, attached->second->row());
  }
  if (!deletion.found.ok()) return next();
  StopSession(deletion.session.id, NotFound("session {} was deleted", deletion.session.id), next);
}

void EngineImpl::FindDeletions(const DeletionsRef& together) {
  context_.LoadToChange<std::monostate>(
      [together](MetaReader& reader) -> absl::StatusOr<std::monostate> {
        CAIRN_ASSIGN_OR_RETURN(Tree tree, LoadTree(reader));
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

void EngineImpl::CommitDeletions(const DeletionsRef& together) {
  MetaBatch batch;
  for (const Deletion& deletion : together->all) {
    if (!deletion.found.ok()) continue;
    batch.Delete(Family::kSessions, SessionKeyBytes(deletion.session.id));
    for (const SegmentId segment : deletion.segments) DeleteSegmentRows(batch, segment);
  }
  if (batch.empty()) return EndDeletions(together, absl::OkStatus());
  context_.Commit(std::move(batch), [this, together](const absl::Status& status) {
    for (const Deletion& deletion : together->all) {
      if (!deletion.found.ok()) continue;
      for (const PageIndex page : deletion.pages) {
        if (status.ok()) {
          context_.free_map->Free(page, 1);
        } else {
          context_.free_map->Doubt(page, 1);
        }
      }
      if (!status.ok()) continue;
      --session_count_;
      unattached_.erase(deletion.session.id);
      LogInfo("delete session={} freed_bytes={}", deletion.session.id,
              static_cast<std::int64_t>(deletion.pages.size()) * kPageBytes);
    }
    EndDeletions(together, status);
  });
}

void EngineImpl::EndDeletions(const DeletionsRef& together, const absl::Status& status) {
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
