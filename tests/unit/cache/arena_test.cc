#include "kv-node/cache/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "common/kv/arena_layout.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kArenaBytes = std::int64_t{2} << 20;

TEST(ArenaTest, GivesOutEachPageOnceAndNotMoreThanItsLimit) {
  Arena arena(kArenaBytes);
  EXPECT_EQ(arena.size_bytes(), 0);
  std::vector<ArenaBlock> blocks;
  while (auto block = arena.Allocate(16)) {
    std::memset(block->bytes().data(), static_cast<int>(blocks.size() + 1), block->bytes().size());
    blocks.push_back(*block);
  }
  EXPECT_LE(arena.size_bytes(), kArenaBytes);
  // What is left of a granule behind its table of generations and whole blocks stays free.
  const std::int64_t usable_pages =
      arena.granule_bytes() / kPageBytes - ArenaTablePages(arena.granule_bytes());
  EXPECT_EQ(std::ssize(blocks), kArenaBytes / arena.granule_bytes() * (usable_pages / 16));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const std::byte byte : blocks[i].bytes()) {
      ASSERT_EQ(std::to_integer<std::size_t>(byte), i + 1);
    }
  }
  arena.Free(blocks[3]);
  EXPECT_FALSE(arena.AllocateNear(blocks.back(), 17));
  EXPECT_TRUE(arena.AllocateNear(blocks[3], 16));
}

TEST(ArenaTest, BlocksLargerThanAGranuleHaveNoRoom) {
  Arena arena(kArenaBytes);
  EXPECT_FALSE(arena.Allocate(arena.granule_bytes() / kPageBytes));
  EXPECT_TRUE(arena.Allocate(arena.granule_bytes() / kPageBytes - 1));
}

TEST(ArenaTest, TrimReturnsEmptyGranulesAndNewOnesHaveNewNames) {
  Arena arena(kArenaBytes);
  const auto first = arena.Allocate(1);
  ASSERT_TRUE(first);
  const std::weak_ptr<const ArenaGranule> watch = first->granule;
  const std::int32_t id = first->granule->id();
  arena.Trim();
  EXPECT_EQ(arena.granules().size(), 1U);
  arena.Free(*first);
  arena.Trim();
  EXPECT_EQ(arena.size_bytes(), 0);
  EXPECT_TRUE(arena.granules().empty());
  EXPECT_FALSE(watch.expired()) << "whoever holds a granule keeps its memory";
  EXPECT_GT(arena.Allocate(1)->granule->id(), id);
}

TEST(ArenaTest, TheWatchHearsOfEveryGranuleUntilItGoes) {
  std::set<const std::byte*> there;
  Arena arena(kArenaBytes,
              {.comes = [&](auto memory) { EXPECT_TRUE(there.insert(memory.data()).second); },
               .goes = [&](auto memory) { EXPECT_EQ(there.erase(memory.data()), 1U); }});
  const std::optional<ArenaBlock> first = arena.Allocate(arena.block_pages_max());
  const std::optional<ArenaBlock> second = arena.Allocate(1);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(there.size(), 2U);
  EXPECT_TRUE(there.contains(first->granule->data()));
  arena.Free(*first);
  arena.Trim();
  EXPECT_EQ(there.size(), 1U);
  EXPECT_TRUE(there.contains(second->granule->data()));
}

TEST(ArenaTest, WhoGetsADescriptorCanReadAndNothingElse) {
  Arena arena(kArenaBytes);
  const auto block = arena.Allocate(1);
  ASSERT_TRUE(block);
  std::memset(block->bytes().data(), 'x', kPageBytes);
  const int fd = block->granule->fd();
  const auto size = static_cast<std::size_t>(block->granule->size_bytes());
  void* read = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(read, MAP_FAILED);
  EXPECT_EQ(static_cast<char*>(read)[block->offset_bytes()], 'x');
  EXPECT_NE(::mprotect(read, size, PROT_READ | PROT_WRITE), 0);
  ::munmap(read, size);
  EXPECT_EQ(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(fd, "y", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd, 0), -1);
  EXPECT_EQ(::ftruncate(fd, 2 * block->granule->size_bytes()), -1);
  EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(ArenaTest, AGenerationIsThatOfAllPagesOfTheRange) {
  Arena arena(kArenaBytes);
  const auto block = arena.Allocate(4);
  ASSERT_TRUE(block);
  block->SetGeneration(7);
  const std::byte* granule = block->granule->data();
  const std::int64_t begin = block->offset_bytes();
  EXPECT_TRUE(HasArenaGeneration(granule, begin, 4 * kPageBytes, 7));
  EXPECT_FALSE(HasArenaGeneration(granule, begin, 4 * kPageBytes, 8));
  const ArenaBlock last{block->granule, block->first_page + 3, 1};
  last.SetGeneration(8);
  EXPECT_TRUE(HasArenaGeneration(granule, begin, 3 * kPageBytes, 7));
  EXPECT_FALSE(HasArenaGeneration(granule, begin, 3 * kPageBytes + 1, 7));
}

}  // namespace
}  // namespace cairn::kv
