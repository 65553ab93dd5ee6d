// What became of the pages of batches that failed: known once a later batch is committed.
#include <algorithm>
#include <memory>

#include "common/log/log.h"
#include "kv-node/engine/engine_core.h"
#include "kv-node/engine/space/allocation.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {

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
        CAIRN_RETURN_IF_ERROR(
            LoadAllocation(reader, *named, [](const ParsedRegionKey&, const RegionBits&) {}));
        return named;
      },
      [this, round](const absl::StatusOr<MapRef>& named) {
        if (!named.ok()) return;  // another batch that is committed tries again
        const std::int64_t freed_count = context_.free_map->SettleDoubts(round, **named);
        LogInfo("pages of failed commits given back count={}", freed_count);
      });
}

}  // namespace cairn::kv
