#include "kv-node/engine/load/session_list.h"

#include <map>
#include <string_view>
#include <utility>

#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/engine/state/segment_tree.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {
namespace {

struct ListedSession {
  SessionInfo info;
  SegmentId open_segment;
};

// The tree of segments, with the pages of each.
class SegmentUse {
 public:
  absl::Status Load(MetaReader& reader) {
    CAIRN_ASSIGN_OR_RETURN(tree_, LoadSegmentTree(reader));
    return ScanRegions(reader, "", [this](const ParsedRegionKey& key, const RegionBits& bits) {
      page_count_[key.segment] += static_cast<std::int64_t>(bits.count());
      return absl::OkStatus();
    });
  }

  // As a deletion does it: segments go up to the first one that another segment stands on.
  void Tell(SegmentId open_segment, SessionInfo& info) {
    bool is_own = true;
    for (SegmentId id = open_segment; id.value() != 0; id = tree_.parent_of[id]) {
      (is_own ? info.own_flash_bytes : info.shared_flash_bytes) += page_count_[id] * kPageBytes;
      is_own = is_own && tree_.child_count[tree_.parent_of[id]] == 1;
    }
  }

 private:
  SegmentTree tree_;
  std::map<SegmentId, std::int64_t> page_count_;
};

ListedSession ToListed(SessionId session, SessionRow row) {
  ListedSession out;
  SessionInfo& info = out.info;
  info.session_id = session;
  info.uid = std::move(row.uid);
  info.label = std::move(row.label);
  info.token_count = row.token_count;
  info.flash_bytes = row.flash_bytes;
  info.create_time_us = row.create_time_us;
  info.checkpoint_time_us = row.checkpoint_time_us;
  info.key = std::move(row.key);
  info.layout = row.layout;
  info.lifetime = row.lifetime;
  info.creator = std::move(row.creator);
  out.open_segment = row.segment;
  return out;
}

}  // namespace

absl::StatusOr<SessionInfo> LoadSessionInfo(MetaReader& reader, AppId app,
                                            const SessionRef& session, ListDetail detail) {
  CAIRN_ASSIGN_OR_RETURN(SessionRow row, LoadSessionRow(reader, app, session));
  ListedSession listed = ToListed(session.id, std::move(row));
  if (detail == ListDetail::kFlashUse) {
    SegmentUse use;
    CAIRN_RETURN_IF_ERROR(use.Load(reader));
    use.Tell(listed.open_segment, listed.info);
  }
  return std::move(listed.info);
}

absl::StatusOr<std::vector<SessionInfo>> LoadSessionInfos(MetaReader& reader, AppId app,
                                                          ListDetail detail) {
  std::vector<ListedSession> sessions;
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSessions, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const SessionId session, ParseSessionKey(key));
        CAIRN_ASSIGN_OR_RETURN(SessionRow row, DecodeSessionRow(value));
        if (row.app == app) sessions.push_back(ToListed(session, std::move(row)));
        return absl::OkStatus();
      }));
  if (detail == ListDetail::kFlashUse) {
    SegmentUse use;
    CAIRN_RETURN_IF_ERROR(use.Load(reader));
    for (ListedSession& session : sessions) use.Tell(session.open_segment, session.info);
  }
  std::vector<SessionInfo> infos;  // ids count up: newest first
  for (auto session = sessions.rbegin(); session != sessions.rend(); ++session) {
    infos.push_back(std::move(session->info));
  }
  return infos;
}

}  // namespace cairn::kv
