// The faulty device has the faults that it promises, and no others: tests of the store rest on it.
#include "tests/tools/faulty_device.h"

#include <map>
#include <set>
#include <vector>

#include "tests/tools/seed.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPages = 64;
constexpr std::int64_t kSectorsInPage = kPage / kSectorBytes;

FaultyDiskOptions Options(std::uint64_t seed = 1, int delay_polls_max = 0) {
  return {.size_bytes = kPages * kPage, .seed = seed, .delay_polls_max = delay_polls_max};
}

// A page in which every byte is `value`.
AlignedBuffer Filled(int value) {
  AlignedBuffer page(kPage);
  std::memset(page.data(), value, kPage);
  return page;
}

// The value of each sector; -1 for a mixed one.
std::vector<int> Sectors(const std::vector<std::byte>& page) {
  std::vector<int> values;
  for (std::int64_t sector = 0; sector < kSectorsInPage; ++sector) {
    const std::byte* begin = page.data() + sector * kSectorBytes;
    const bool same = std::all_of(begin, begin + kSectorBytes, [&](auto b) { return b == *begin; });
    values.push_back(same ? std::to_integer<int>(*begin) : -1);
  }
  return values;
}

TEST(FaultyDisk, FlushedWritesSurviveAPowerCut) {
  FaultyDisk disk(Options());
  auto device = disk.Open();
  ASSERT_TRUE(WriteNow(*device, 3 * kPage, Filled(1)).ok());
  EXPECT_EQ(disk.unflushed_page_count(), 1);
  ASSERT_TRUE(FlushNow(*device).ok());
  EXPECT_EQ(disk.unflushed_page_count(), 0);
  disk.PowerCut();
  device.reset();
  device = disk.Open();
  AlignedBuffer out(kPage);
  ASSERT_TRUE(ReadNow(*device, 3 * kPage, out).ok());
  EXPECT_TRUE(SameBytes(out, Filled(1)));
}

TEST(FaultyDisk, APowerCutMixesSectorsOfAllVersionsSinceTheFlush) {
  FaultyDisk disk(Options(test::TestSeed()));
  auto device = disk.Open();
  for (std::int64_t page = 0; page < kPages; ++page) {
    ASSERT_TRUE(WriteNow(*device, page * kPage, Filled(9)).ok());
  }
  ASSERT_TRUE(WriteNow(*device, 0, Filled(1)).ok());
  ASSERT_TRUE(FlushNow(*device).ok());
  for (const int value : {2, 3}) {
    for (std::int64_t page = 0; page < kPages; ++page) {
      ASSERT_TRUE(WriteNow(*device, page * kPage, Filled(value)).ok());
    }
  }
  disk.PowerCut();
  std::set<int> seen;
  for (std::int64_t page = 1; page < kPages; ++page) {
    for (const int value : Sectors(disk.PageBytes(page))) seen.insert(value);
  }
  EXPECT_EQ(seen, (std::set<int>{2, 3, 9}));
  for (const int value : Sectors(disk.PageBytes(0))) EXPECT_NE(value, 9);
}

TEST(FaultyDisk, AFlushDoesNotCoverWritesSubmittedBesideIt) {
  // With delays a flush may complete after a write that was submitted with it, and still not hold
  // it.
  bool lost = false;
  for (std::uint64_t seed = 0; seed < 200 && !lost; ++seed) {
    FaultyDisk disk(Options(seed, 4));
    auto device = disk.Open();
    const AlignedBuffer page = Filled(1);
    device->SubmitFlush([](const absl::Status&) {});
    device->SubmitWrite(DeviceOffset(0), page.span(), [](const absl::Status&) {});
    Drain(*device);
    EXPECT_EQ(disk.unflushed_page_count(), 1);
    disk.PowerCut();
    lost = Sectors(disk.PageBytes(0)) != std::vector<int>(kSectorsInPage, 1);
  }
  EXPECT_TRUE(lost);
}

TEST(FaultyDisk, AWriteInFlightAtAPowerCutMayBeThereInPart) {
  std::set<int> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    FaultyDisk disk(Options(seed, 100));
    auto device = disk.Open();
    const AlignedBuffer page = Filled(1);
    device->SubmitWrite(DeviceOffset(0), page.span(), [](const absl::Status&) {});
    disk.PowerCut();
    for (const int value : Sectors(disk.PageBytes(0))) seen.insert(value);
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1}));
}

TEST(FaultyDisk, ADeviceIsDeadAfterAPowerCut) {
  FaultyDisk disk(Options(1, 100));
  auto device = disk.Open();
  AlignedBuffer page = Filled(1);
  absl::Status in_flight;
  device->SubmitRead(DeviceOffset(0), page.span(), [&](const absl::Status& s) { in_flight = s; });
  disk.PowerCut();
  auto next = disk.Open();
  Drain(*device);
  EXPECT_FALSE(in_flight.ok());
  EXPECT_FALSE(WriteNow(*device, 0, page).ok());
  EXPECT_FALSE(FlushNow(*device).ok());
  AlignedBuffer out(kPage);
  EXPECT_TRUE(ReadNow(*next, 0, out).ok());
  EXPECT_TRUE(SameBytes(out, AlignedBuffer(kPage)));
}

TEST(FaultyDisk, ACorruptPageReadsWrongUntilItIsWrittenAgain) {
  FaultyDisk disk(Options());
  auto device = disk.Open();
  ASSERT_TRUE(WriteNow(*device, 0, Filled(1)).ok());
  disk.CorruptPage(0);
  AlignedBuffer first(kPage);
  AlignedBuffer second(kPage);
  ASSERT_TRUE(ReadNow(*device, 0, first).ok());
  ASSERT_TRUE(ReadNow(*device, 0, second).ok());
  EXPECT_FALSE(SameBytes(first, Filled(1)));
  EXPECT_TRUE(SameBytes(first, second));
  EXPECT_EQ(Sectors(disk.PageBytes(0)), std::vector<int>(kSectorsInPage, 1));
  ASSERT_TRUE(WriteNow(*device, 0, Filled(2)).ok());
  ASSERT_TRUE(ReadNow(*device, 0, first).ok());
  EXPECT_TRUE(SameBytes(first, Filled(2)));
}

TEST(FaultyDisk, InjectedErrorsComeOnceEachAndTransferNothing) {
  FaultyDisk disk(Options());
  auto device = disk.Open();
  AlignedBuffer out(kPage);
  disk.FailNextReads(2);
  EXPECT_EQ(ReadNow(*device, 0, out).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReadNow(*device, 0, out).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(ReadNow(*device, 0, out).ok());
  disk.FailNextWrites(1);
  EXPECT_EQ(WriteNow(*device, 0, Filled(1)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Sectors(disk.PageBytes(0)), std::vector<int>(kSectorsInPage, 0));
  ASSERT_TRUE(WriteNow(*device, 0, Filled(1)).ok());
  disk.FailNextFlushes(1);
  EXPECT_EQ(FlushNow(*device).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(disk.unflushed_page_count(), 1);
  EXPECT_EQ(device->stats().error_count, 4);
}

TEST(FaultyDisk, ShortTransfersAreContinuedByTheDevice) {
  FaultyDisk disk(Options(test::TestSeed()));
  auto device = disk.Open();
  const AlignedBuffer data = Pattern(16 * kPage, 3);
  disk.ShortenNext(20);
  ASSERT_TRUE(WriteNow(*device, 4 * kPage, data).ok());
  disk.ShortenNext(20);
  AlignedBuffer out(16 * kPage);
  ASSERT_TRUE(ReadNow(*device, 4 * kPage, out).ok());
  EXPECT_TRUE(SameBytes(out, data));
  EXPECT_EQ(device->stats().write_bytes, 16 * kPage);
}

TEST(FaultyDisk, ATransferThatNeverEndsBecomesAnError) {
  FaultyDisk disk(Options());
  auto device = disk.Open();
  disk.ShortenNext(1'000'000);
  EXPECT_EQ(WriteNow(*device, 0, Filled(1)).code(), absl::StatusCode::kInternal);
}

TEST(FaultyDisk, LostAndMisdirectedWritesReportSuccess) {
  FaultyDisk disk(Options());
  auto device = disk.Open();
  disk.LoseNextWrites(1);
  ASSERT_TRUE(WriteNow(*device, 0, Filled(1)).ok());
  EXPECT_EQ(disk.unflushed_page_count(), 0);
  disk.MisdirectNextWrites(1);
  ASSERT_TRUE(WriteNow(*device, 0, Filled(2)).ok());
  EXPECT_EQ(disk.unflushed_page_count(), 1);
  int holders = 0;
  for (std::int64_t page = 0; page < kPages; ++page) {
    holders += Sectors(disk.PageBytes(page)).front() == 2 ? 1 : 0;
  }
  EXPECT_EQ(holders, 1);
}

TEST(FaultyDisk, CompletionsComeInAnyOrderAndTheSeedRepeatsIt) {
  const auto order_of = [](std::uint64_t seed) {
    FaultyDisk disk(Options(seed, 8));
    auto device = disk.Open();
    std::vector<int> order;
    AlignedBuffer page(kPage);
    for (int i = 0; i < 20; ++i) {
      device->SubmitRead(DeviceOffset(i * kPage), page.span(),
                         [&order, i](const absl::Status&) { order.push_back(i); });
    }
    Drain(*device);
    return order;
  };
  const std::vector<int> order = order_of(5);
  EXPECT_EQ(order.size(), 20U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order, order_of(5));
  EXPECT_NE(order, order_of(6));
}

// Plan: write random pages, flush now and then, cut the power at random; every sector must hold a
// value that was written since the last flush that completed, or the last one before it.
TEST(FaultyDisk, RandomPowerCutsKeepWhatWasFlushed) {
  std::mt19937_64 random(test::TestSeed());
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  FaultyDisk disk(Options(random(), 3));
  std::vector<std::vector<std::set<int>>> allowed(kPages,
                                                  std::vector<std::set<int>>(kSectorsInPage, {0}));
  for (int life = 0; life < 30; ++life) {
    auto device = disk.Open();
    for (int step = 0; step < 50; ++step) {
      if (below(10) == 0) {
        ASSERT_TRUE(FlushNow(*device).ok());
        for (std::int64_t page = 0; page < kPages; ++page) {
          const std::vector<int> now = Sectors(disk.PageBytes(page));
          for (std::size_t i = 0; i < now.size(); ++i) {
            allowed[static_cast<std::size_t>(page)][i] = {now[i]};
          }
        }
        continue;
      }
      const int page = below(static_cast<int>(kPages));
      const int value = 1 + below(255);
      ASSERT_TRUE(WriteNow(*device, page * kPage, Filled(value)).ok());
      for (auto& values : allowed[static_cast<std::size_t>(page)]) values.insert(value);
    }
    disk.PowerCut();
    for (std::int64_t page = 0; page < kPages; ++page) {
      const std::vector<int> now = Sectors(disk.PageBytes(page));
      for (std::size_t i = 0; i < now.size(); ++i) {
        auto& values = allowed[static_cast<std::size_t>(page)][i];
        ASSERT_TRUE(values.contains(now[i])) << "page " << page << " sector " << i;
        values = {now[i]};
      }
    }
  }
}

}  // namespace
}  // namespace cairn::kv
