// AppCaches has the cache of each app. No two apps share memory: what one of them may map holds
// nothing that was read for another.
//
// Threading:  the engine thread; GranulesOf is for any thread.
// Limits:     bytes_max for each app. A cache without slots and leases has no memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/cache/slot_cache.h"

namespace cairn::kv {

class AppCaches {
 public:
  // `watch` hears of the memory of all of them.
  AppCaches(std::int64_t bytes_max, ReplacementPolicy policy, GranuleWatch watch)
      : bytes_max_(bytes_max), policy_(policy), watch_(std::move(watch)) {}

  // The app's cache, which lives as long as this does.
  SlotCache& Of(AppId app);
  // What the app's clients may map.
  std::vector<std::shared_ptr<const ArenaGranule>> GranulesOf(AppId app) const;
  // Pages from `first` on are being written with `bytes`: whichever cache has them.
  void OnWrite(PageIndex first, std::span<const std::byte> bytes);
  // Of all of them.
  std::int64_t size_bytes() const;

 private:
  const std::int64_t bytes_max_;
  const ReplacementPolicy policy_;
  const GranuleWatch watch_;
  mutable Mutex mutex_;  // of the map, which the engine thread alone changes
  std::map<AppId, std::unique_ptr<SlotCache>> caches_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
