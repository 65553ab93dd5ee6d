// A packed map against std::map, in random histories; and what it needs of memory.
#include "kv-node/engine/space/packed_map.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::kv {
namespace {

std::map<std::int64_t, std::string> All(const PackedMap& map) {
  std::map<std::int64_t, std::string> out;
  std::int64_t last = -1;
  map.ForEach([&](std::int64_t key, std::string_view value) {
    EXPECT_LT(last, key);
    last = key;
    out[key] = std::string(value);
  });
  return out;
}

void ExpectSame(const PackedMap& map, const std::map<std::int64_t, std::string>& want,
                std::int64_t probe) {
  const auto found = want.find(probe);
  std::optional<std::string_view> value;
  if (found != want.end()) value = found->second;
  ASSERT_EQ(map.Find(probe), value);
  const auto above = want.lower_bound(probe);
  std::optional<std::int64_t> below;
  if (above != want.begin()) below = std::prev(above)->first;
  ASSERT_EQ(map.KeyBelow(probe), below);
  ASSERT_EQ(map.count(), std::ssize(want));
  ASSERT_EQ(map.empty(), want.empty());
}

TEST(PackedMapTest, RandomChangesAgreeWithAMap) {
  test::Rng rng(test::TestSeed());
  for (const std::uint64_t key_max : {50U, 1000U, 100000U}) {
    const auto draw_key = [&] { return static_cast<std::int64_t>(rng.Below(key_max)); };
    PackedMap map;
    std::map<std::int64_t, std::string> want;
    for (int i = 0; i < 6000; ++i) {
      // It grows for a while, then shrinks, so that blocks are split and joined.
      if (rng.Below(4) == (i / 1500 % 2 == 0 ? 0U : 1U)) {
        const std::int64_t key = draw_key();
        EXPECT_EQ(map.Erase(key), want.erase(key) > 0);
      } else if (i / 1500 % 2 == 0) {
        const std::int64_t key = draw_key();
        const std::string value(rng.Below(40), static_cast<char>(rng.Below(256)));
        map.Put(key, value);
        want[key] = value;
      } else if (const auto victim = want.lower_bound(draw_key()); victim != want.end()) {
        EXPECT_TRUE(map.Erase(victim->first));
        want.erase(victim);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSame(map, want, draw_key()));
    }
    EXPECT_EQ(All(map), want);
  }
}

TEST(PackedMapTest, AValueOfTheMapMayBePutElsewhere) {
  PackedMap map;
  map.Put(1, "one");
  map.Put(2, *map.Find(1));
  map.Put(1, *map.Find(2));
  EXPECT_EQ(map.Find(2), "one");
  EXPECT_EQ(map.Find(1), "one");
}

TEST(PackedMapTest, KeysOutsideAreNotThere) {
  PackedMap map;
  EXPECT_FALSE(map.Find(1));
  EXPECT_FALSE(map.Erase(1));
  EXPECT_FALSE(map.KeyBelow(1));
  map.Put(5, "");
  EXPECT_EQ(map.Find(5), "");
  EXPECT_FALSE(map.Find(-1));
  EXPECT_FALSE(map.Find(INT64_MAX));
  EXPECT_EQ(map.KeyBelow(INT64_MAX), 5);
  EXPECT_FALSE(map.KeyBelow(5));
}

TEST(PackedMapTest, ItemsNeedLittleMoreThanTheirBytes) {
  constexpr std::int64_t kCount = 20000;
  const std::string value(30, 'x');
  PackedMap ascending;
  PackedMap scattered;
  for (std::int64_t i = 0; i < kCount; ++i) {
    ascending.Put(i, value);
    scattered.Put(i * 7919 % kCount, value);
  }
  EXPECT_LT(ascending.memory_bytes(), kCount * 40);
  EXPECT_LT(scattered.memory_bytes(), kCount * 41);
  for (std::int64_t i = 0; i < kCount; ++i) {
    if (i % 16 != 0) scattered.Erase(i);
  }
  EXPECT_LT(scattered.memory_bytes(), kCount / 16 * 64) << "blocks that became small are joined";
}

}  // namespace
}  // namespace cairn::kv
