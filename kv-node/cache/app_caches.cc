#include "kv-node/cache/app_caches.h"

namespace cairn::kv {

SlotCache& AppCaches::Of(AppId app) {
  MutexLock lock(mutex_);
  std::unique_ptr<SlotCache>& cache = caches_[app];
  if (cache == nullptr) cache = std::make_unique<SlotCache>(bytes_max_, policy_, watch_);
  return *cache;
}

std::vector<std::shared_ptr<const ArenaGranule>> AppCaches::GranulesOf(AppId app) const {
  MutexLock lock(mutex_);
  const auto found = caches_.find(app);
  if (found == caches_.end()) return {};
  return found->second->arena().granules();
}

void AppCaches::OnWrite(PageIndex first, std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  for (const auto& [app, cache] : caches_) cache->OnWrite(first, bytes);
}

std::int64_t AppCaches::size_bytes() const {
  MutexLock lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& [app, cache] : caches_) bytes += cache->arena().size_bytes();
  return bytes;
}

}  // namespace cairn::kv
