// What the engine tells of itself: its sessions, what it counts, and what it has in memory.
#include <utility>

#include "kv-node/engine/engine_core.h"
#include "kv-node/engine/load/session_list.h"

namespace cairn::kv {

std::int64_t EngineCore::DramUsedBytes() const {
  const BufferPool& buffers = context_.io->buffers();
  const std::int64_t arena_bytes = context_.caches == nullptr ? 0 : context_.caches->size_bytes();
  return buffers.used_bytes() + buffers.kept_bytes() + context_.pending_bytes + arena_bytes;
}

KvStats EngineCore::Stats(AppId app) const {
  KvStats stats = context_.counts;
  stats.io_engine = std::string(device_->name());
  stats.flash_used_bytes = context_.free_map->used_count() * kPageBytes;
  stats.flash_size_bytes = context_.free_map->page_count() * kPageBytes;
  stats.dram_used_bytes = DramUsedBytes();
  stats.dram_peak_bytes = dram_peak_bytes_;
  stats.read_meta_bytes = context_.meta->read_bytes();
  const MetaWriteStats meta = context_.meta->write_stats();
  stats.write_meta_log_bytes = meta.log_bytes;
  stats.write_meta_table_bytes = meta.table_bytes;
  if (context_.caches != nullptr) {
    const SlotCache& app_cache = context_.caches->Of(app);
    const SlotCacheStats& cache = app_cache.stats();
    stats.arena_bytes = app_cache.arena().size_bytes();
    stats.cache_hit_count = cache.hit_count;
    stats.cache_hit_bytes = cache.hit_bytes;
    stats.cache_miss_count = cache.miss_count;
    stats.cache_miss_bytes = cache.miss_bytes;
    stats.cache_evicted_count = cache.evicted_count;
    stats.cache_no_room_count = cache.no_room_count;
    stats.leased_slot_count = app_cache.leased_count();
  }
  for (const auto& [id, session] : attached_) {
    if (session->row().app != app) continue;
    ++stats.attached_count;
    stats.row_bytes += session->row_bytes();
  }
  return stats;
}

void EngineCore::GetSession(AppId app, SessionRef session, ListDetail detail,
                            Callback<SessionInfo> done) {
  PostRequest(std::move(done),
              [this, app, session = std::move(session), detail](const Callback<SessionInfo>& cb) {
                context_.Load<SessionInfo>(
                    [app, session, detail](MetaReader& reader) {
                      return LoadSessionInfo(reader, app, session, detail);
                    },
                    [this, cb](absl::StatusOr<SessionInfo> info) {
                      if (info.ok()) info->attached = attached_.contains(info->session_id);
                      cb(std::move(info));
                    });
              });
}

void EngineCore::ListSessions(AppId app, ListDetail detail,
                              Callback<std::vector<SessionInfo>> done) {
  PostRequest(std::move(done), [this, app, detail](const Callback<std::vector<SessionInfo>>& cb) {
    using Infos = std::vector<SessionInfo>;
    context_.Load<Infos>(
        [app, detail](MetaReader& reader) { return LoadSessionInfos(reader, app, detail); },
        [this, cb](absl::StatusOr<Infos> infos) {
          if (infos.ok()) {
            for (SessionInfo& info : *infos) info.attached = attached_.contains(info.session_id);
          }
          cb(std::move(infos));
        });
  });
}

void EngineCore::Inspect(AppId app, SessionRef session, InspectionQuestion question,
                         Callback<InspectionAnswer> done) {
  PostRequest(std::move(done), [this, app, session = std::move(session),
                                question](const Callback<InspectionAnswer>& cb) {
    const auto found = attached_.find(session.id);
    if (found == attached_.end() || !CheckMeant(app, session, found->second->row()).ok()) {
      return cb(NotFound("session {}: nobody is attached to it", session.id));
    }
    cb(found->second->Inspect(question));
  });
}

}  // namespace cairn::kv
