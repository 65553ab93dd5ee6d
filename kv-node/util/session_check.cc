#include "kv-node/util/session_check.h"

#include <algorithm>

#include "common/base/fail_point.h"
#include "kv-node/engine/load/session_loader.h"

namespace cairn::kv {
namespace {

absl::Status CheckKeys(const StoredSession& session) {
  for (const StoredSegment& segment : session.chain) {
    if (segment.row.app != session.row.app) {
      return DataLoss("segment {} is of app {}, not {}", segment.id, segment.row.app,
                      session.row.app);
    }
    if (segment.row.key == session.row.key && segment.row.layout == session.row.layout) continue;
    return DataLoss("segment {} has another model, adapter, layout or KV format", segment.id);
  }
  return absl::OkStatus();
}

// What clusters, evictions and carried rows show together, as at the checkpoint (rule 1 says which
// carried rows).
absl::Status CheckPositions(const SessionState& state, std::int64_t token_count) {
  std::map<ClusterKey, CarriedEntries> carried;
  for (std::int32_t layer = 0; layer < state.layout().layer_count; ++layer) {
    for (const auto& [key, parts] : state.CarriedOf(layer)) {
      CarriedEntries& entries = carried[key];
      for (const Part& part : parts) {
        if (!entries.positions.empty() && part.positions.first() <= entries.positions.last()) {
          return DataLoss("layer {} head {} carries position {} out of order", key.layer, key.head,
                          part.positions.first());
        }
        entries.positions.AppendAll(part.positions);
      }
    }
  }
  if (FailPoint("verify: positions are not counted")) return absl::OkStatus();
  return state.CheckPositions(token_count, carried);
}

absl::Status CheckTokens(MetaReader& reader, const SessionRow& row) {
  for (std::int64_t first = 0; first < row.token_count; first += kGetTokensCountMax) {
    const std::int64_t count = std::min<std::int64_t>(kGetTokensCountMax, row.token_count - first);
    CAIRN_RETURN_IF_ERROR(LoadTokens(reader, row.segment, row.token_count, first, count).status());
  }
  return absl::OkStatus();
}

}  // namespace

void CheckSession(const StoreView& store, SessionId session, const std::shared_ptr<FreeMap>& pages,
                  const FindingSink& sink, StoreSurvey& survey) {
  const auto lose = [&](FindingKind kind, const absl::Status& status) {
    if (status.ok()) return;
    survey.sessions[session].lost = true;
    sink({.kind = kind, .reason = Message(status), .session = session});
  };
  absl::StatusOr<StoredSession> stored = LoadSession(*store.meta, session);
  if (!stored.ok()) return lose(FindingKind::kSession, stored.status());
  lose(FindingKind::kChain, CheckKeys(*stored));
  const SessionRow row = stored->row;
  lose(FindingKind::kTokens, CheckTokens(*store.meta, row));
  const absl::StatusOr<LoadedState> loaded = BuildState(pages, *std::move(stored));
  if (!loaded.ok()) return lose(FindingKind::kSession, loaded.status());
  lose(FindingKind::kPositions, CheckPositions(*loaded->state, row.token_count));
}

}  // namespace cairn::kv
