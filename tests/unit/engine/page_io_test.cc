// What PageIo asks of the device, and that every page it hands out is the one that was asked for.
#include "kv-node/engine/io/page_io.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/faulty_device.h"
#include "tests/tools/seed.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPageCount = 1200;
constexpr std::int64_t kPiecesOfAnySize = std::int64_t{1} << 30;

class PageIoTest : public testing::Test {
 protected:
  void Start(const MergeLimits& merge, int delay_polls_max = 0) {
    TearDown();
    disk_ = std::make_unique<FaultyDisk>(FaultyDiskOptions{
        .size_bytes = kPageCount * kPageBytes, .seed = 3, .delay_polls_max = delay_polls_max});
    device_ = disk_->Open();
    counts_ = {};
    io_ = std::make_unique<PageIo>(*device_, merge, counts_);
    for (std::int64_t page = 0; page < kPageCount; ++page) Write(page, page);
    Finish();
  }
  void TearDown() override {
    device_.reset();
    io_.reset();
  }
  static void Fill(std::byte* page, std::int64_t value) {
    for (std::int64_t i = 0; i < kPageBytes; i += 8) std::memcpy(page + i, &value, 8);
  }
  // Not finished when it returns.
  void Write(std::int64_t page, std::int64_t value) {
    SharedBuffer buffer = io_->buffers().MakeZeroed(kPageBytes);
    Fill(buffer->data(), value);
    values_[page] = value;
    io_->Write(PageIndex(page), std::move(buffer), WriteCause::kPool,
               [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  }
  void Submit(const std::vector<std::int64_t>& pages) {
    std::vector<PageIndex> asked;
    asked.reserve(pages.size());
    for (const std::int64_t page : pages) asked.emplace_back(page);
    io_->Read(asked, ReadCause::kFetch, [this](PageSet set) { set_ = std::move(set); });
    EXPECT_FALSE(set_.has_value());
  }
  void Finish() {
    while (device_->in_flight_count() > 0) device_->Poll(std::chrono::microseconds(0));
    io_->RunReady();
  }
  // Reads, and returns how many requests that took.
  std::int64_t Read(const std::vector<std::int64_t>& pages) {
    const std::int64_t before = device_->stats().read_count;
    set_.reset();
    Submit(pages);
    Finish();
    ExpectPages(pages);
    return device_->stats().read_count - before;
  }
  void ExpectPages(const std::vector<std::int64_t>& pages) {
    ASSERT_TRUE(set_.has_value());
    for (const std::int64_t page : pages) {
      EXPECT_FALSE(set_->Failed(PageIndex(page))) << page;
      ExpectValue(page, values_[page]);
    }
  }
  void ExpectValue(std::int64_t page, std::int64_t value) {
    std::vector<std::byte> expected(kPageBytes);
    Fill(expected.data(), value);
    EXPECT_EQ(std::memcmp(set_->At(PageIndex(page)), expected.data(), kPageBytes), 0)
        << "page " << page << " does not hold " << value;
  }

  std::unique_ptr<FaultyDisk> disk_;
  std::unique_ptr<Device> device_;
  KvStats counts_;
  std::unique_ptr<PageIo> io_;
  std::map<std::int64_t, std::int64_t> values_;
  std::optional<PageSet> set_;
};

TEST_F(PageIoTest, NeighboursAreReadInOneRequestAndLieOneAfterTheOther) {
  Start({});
  EXPECT_EQ(Read({12, 10, 11, 11, 13}), 1);
  EXPECT_EQ(set_->At(PageIndex(13)), set_->At(PageIndex(10)) + 3 * kPageBytes);
  EXPECT_EQ(Read({10, 12}), 2);
  EXPECT_EQ(counts_.read_hole_bytes, 0);
  EXPECT_EQ(counts_.read_fetch_count, 3);
}

TEST_F(PageIoTest, HolesUpToTheLimitAreReadWithTheirNeighbours) {
  Start({.gap_bytes = 2 * kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  EXPECT_EQ(Read({10, 11, 13, 16, 17}), 1);
  EXPECT_EQ(counts_.read_hole_bytes, 3 * kPageBytes);
  EXPECT_EQ(counts_.read_fetch_bytes, 8 * kPageBytes);
  EXPECT_EQ(counts_.read_fetch_count, 1);
  EXPECT_EQ(set_->At(PageIndex(11)), set_->At(PageIndex(10)) + kPageBytes);
  EXPECT_EQ(set_->At(PageIndex(17)), set_->At(PageIndex(16)) + kPageBytes);
  EXPECT_EQ(Read({10, 14}), 2);
  EXPECT_EQ(counts_.read_hole_bytes, 3 * kPageBytes);
}

TEST_F(PageIoTest, ALongPieceBehindAHoleHasARequestOfItsOwn) {
  Start({.gap_bytes = kPageBytes, .piece_bytes_max = 2 * kPageBytes});
  EXPECT_EQ(Read({10, 12, 13}), 1);
  EXPECT_EQ(Read({10, 12, 13, 14}), 2);
  EXPECT_EQ(Read({10, 11, 12, 14}), 1);
}

TEST_F(PageIoTest, ARequestHasSixtyFourPagesAtMostWithItsHoles) {
  Start({.gap_bytes = kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  std::vector<std::int64_t> pages;
  for (std::int64_t page = 100; page < 164; ++page) pages.push_back(page);
  EXPECT_EQ(Read(pages), 1);
  pages.push_back(164);
  EXPECT_EQ(Read(pages), 2);
  pages.clear();
  for (std::int64_t page = 100; page <= 226; page += 2) pages.push_back(page);  // 64 of them
  EXPECT_EQ(Read(pages), 2);
}

TEST_F(PageIoTest, HolesOfOneReadAreBoundedInAll) {
  Start({.gap_bytes = 2 * kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  std::vector<std::int64_t> pages;
  for (std::int64_t page = 2; page < 600; page += 3) pages.push_back(page);
  Read(pages);
  EXPECT_EQ(counts_.read_hole_bytes, PageIo::kHoleBytesMax);
}

TEST_F(PageIoTest, AReadWhoseBufferWouldNotBeKeptReadsNoHoles) {
  Start({.gap_bytes = kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  std::vector<std::int64_t> pages;
  for (std::int64_t page = 2; page < 1100; page += 2) pages.push_back(page);
  EXPECT_EQ(Read(pages), static_cast<std::int64_t>(pages.size()));
  EXPECT_EQ(counts_.read_hole_bytes, 0);
}

TEST_F(PageIoTest, APageThatIsBeingWrittenComesFromMemoryAndIsNotReadOver) {
  Start({.gap_bytes = 8 * kPageBytes, .piece_bytes_max = kPiecesOfAnySize}, 20);
  Write(11, 5000);
  EXPECT_EQ(Read({10, 11, 12}), 2);
  ExpectValue(11, 5000);
  Write(11, 5001);
  EXPECT_EQ(Read({10, 12}), 2) << "a hole that is being written was read";
  EXPECT_EQ(Read({10, 12}), 1) << "the write has ended";
}

TEST_F(PageIoTest, AReadThatFailsWithAHoleIsTriedWithoutIt) {
  Start({.gap_bytes = kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  disk_->FailNextReads(1);
  EXPECT_EQ(Read({10, 11, 13}), 2);
  EXPECT_EQ(set_->At(PageIndex(11)), set_->At(PageIndex(10)) + kPageBytes);
}

TEST_F(PageIoTest, OnlyThePagesOfAPieceThatFailsAreLost) {
  Start({.gap_bytes = kPageBytes, .piece_bytes_max = kPiecesOfAnySize});
  // With the hole, its two pieces, and the first piece once more.
  disk_->FailNextReads(4);
  Submit({10, 11, 13});
  Finish();
  ASSERT_TRUE(set_.has_value());
  EXPECT_TRUE(set_->Failed(PageIndex(10)));
  EXPECT_TRUE(set_->Failed(PageIndex(11)));
  EXPECT_FALSE(set_->Failed(PageIndex(13)));
  ExpectValue(13, 13);
}

TEST_F(PageIoTest, WhatFailsOrIsDoubtedIsReadOnceMore) {
  Start({});
  disk_->FailNextReads(1);
  EXPECT_EQ(Read({10, 11, 13}), 2);
  EXPECT_EQ(device_->stats().error_count, 1);
  int doubt_count = 0;
  set_.reset();
  io_->Read(
      {PageIndex(20), PageIndex(22)}, ReadCause::kFetch,
      [&](PageSet set) { set_ = std::move(set); },
      [&](const PageSet&) {
        ++doubt_count;
        return std::vector<PageIndex>{PageIndex(22)};
      });
  const std::int64_t before = device_->stats().read_count;
  Finish();
  EXPECT_EQ(device_->stats().read_count - before, 3);
  EXPECT_EQ(doubt_count, 2) << "what came again is looked at too";
  ExpectValue(20, 20);
  ExpectValue(22, 22);
}

TEST_F(PageIoTest, RandomReadsBesideWritesGiveThePagesAsked) {
  std::mt19937_64 random(test::TestSeed());
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 6; ++round) {
    Start({.gap_bytes = below(5) * kPageBytes, .piece_bytes_max = below(8) * kPageBytes}, 8);
    for (int step = 0; step < 60; ++step) {
      for (std::int64_t i = below(6); i > 0; --i) {
        const std::int64_t page = below(60);
        if (!io_->IsBeingWritten(PageIndex(page))) Write(page, 10'000 + below(1'000'000));
      }
      device_->Poll(std::chrono::microseconds(0));
      std::vector<std::int64_t> pages;
      for (std::int64_t i = 1 + below(30); i > 0; --i) pages.push_back(below(60));
      set_.reset();
      Submit(pages);
      // A write of a page behind the read may end before it: the page is the old or the new one.
      // So nothing is written until the read has ended.
      Finish();
      ExpectPages(pages);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace cairn::kv
