#include "kv-node/cache/app_caches.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

constexpr AppId kApps[] = {AppId(1), AppId(2)};

TEST(AppCachesTest, EachAppHasMemoryOfItsOwnAndAWriteReachesAll) {
  int granule_count = 0;
  AppCaches caches(std::int64_t{1} << 20, ReplacementPolicy::kLru,
                   {.comes = [&](std::span<std::byte>) { ++granule_count; },
                    .goes = [](std::span<std::byte>) {}});
  EXPECT_EQ(caches.size_bytes(), 0);
  EXPECT_TRUE(caches.GranulesOf(kApps[0]).empty());
  std::vector<SlotRef> slots;
  for (const AppId app : kApps) {
    SlotCache& cache = caches.Of(app);
    EXPECT_EQ(&cache, &caches.Of(app));
    const SlotRef slot = cache.Load(SessionId(app.value()), PageIndex(10), 1);
    ASSERT_NE(slot, nullptr);
    cache.Loaded(slot, true);
    slots.push_back(slot);
    ASSERT_EQ(caches.GranulesOf(app).size(), 1U);
  }
  EXPECT_EQ(granule_count, 2);
  EXPECT_NE(caches.GranulesOf(kApps[0])[0]->data(), caches.GranulesOf(kApps[1])[0]->data());
  EXPECT_EQ(caches.size_bytes(),
            caches.Of(kApps[0]).arena().size_bytes() + caches.Of(kApps[1]).arena().size_bytes());
  const std::vector<std::byte> page(kPageBytes, std::byte{7});
  caches.OnWrite(PageIndex(10), page);
  for (const SlotRef& slot : slots) EXPECT_EQ(*slot->At(PageIndex(10)), std::byte{7});
}

}  // namespace
}  // namespace cairn::kv
