// Every device keeps the promises of device.h.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"
#include "kv-node/device/thread_pool_device.h"
#include "kv-node/device/uring_device.h"
#include "kv-node/device/uring_probe.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kDeviceBytes = 256 * kPage;
constexpr int kDepth = 4;
// A wait that nothing ends is ended by ctest.
constexpr std::chrono::hours kLongerThanTests{24};

// Whether this process may pin that much memory.
bool MayLock(std::int64_t size_bytes) {
  rlimit limit{};
  CAIRN_CHECK_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  return geteuid() == 0 || limit.rlim_cur >= static_cast<rlim_t>(size_bytes);
}

class DeviceConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (GetParam() == "io_uring") {
      const UringProbe probe = ProbeUring();
      if (!probe.available) GTEST_SKIP() << "io_uring is refused: " << probe.reason;
    }
    device_ = Make();
  }
  void TearDown() override {
    device_.reset();
    if (fd_ >= 0) close(fd_);
  }

  std::unique_ptr<Device> Make() {
    if (GetParam() == "memory") return std::make_unique<MemoryDevice>(kDeviceBytes, kDepth);
    if (GetParam() == "modelled") {
      return std::make_unique<ModelledDevice>(std::make_unique<MemoryDevice>(kDeviceBytes),
                                              *FindDeviceModel("ufs4.0"), kDepth);
    }
    if (GetParam() == "faulty") {
      disk_ = std::make_unique<FaultyDisk>(
          FaultyDiskOptions{.size_bytes = kDeviceBytes, .seed = 7, .delay_polls_max = 5});
      return disk_->Open();
    }
    fd_ = open(dir_.File("device").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_GE(fd_, 0);
    EXPECT_EQ(ftruncate(fd_, kDeviceBytes), 0);
    if (GetParam() == "threads") {
      return std::make_unique<ThreadPoolDevice>(fd_, kDeviceBytes, kDepth, 3);
    }
    return std::make_unique<UringDevice>(fd_, kDeviceBytes, kDepth);
  }

  // Reads of one page each, and what each calls.
  void SubmitReads(int count, const std::function<void()>& done) {
    for (int i = 0; i < count; ++i) {
      device_->SubmitRead(DeviceOffset(i * kPage), buffers_.emplace_back(kPage).span(),
                          [done](const absl::Status& status) {
                            EXPECT_TRUE(status.ok()) << status;
                            done();
                          });
    }
  }

  test::TempDir dir_;
  std::deque<AlignedBuffer> buffers_;
  std::unique_ptr<FaultyDisk> disk_;
  int fd_ = -1;
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformance, ReadsReturnWhatWasWritten) {
  const AlignedBuffer first = Pattern(kPage, 1);
  const AlignedBuffer last = Pattern(3 * kPage, 2);
  ASSERT_TRUE(WriteNow(*device_, 0, first).ok());
  ASSERT_TRUE(WriteNow(*device_, kDeviceBytes - 3 * kPage, last).ok());
  AlignedBuffer out(kPage);
  ASSERT_TRUE(ReadNow(*device_, 0, out).ok());
  EXPECT_TRUE(SameBytes(out, first));
  AlignedBuffer tail(3 * kPage);
  ASSERT_TRUE(ReadNow(*device_, kDeviceBytes - 3 * kPage, tail).ok());
  EXPECT_TRUE(SameBytes(tail, last));
}

TEST_P(DeviceConformance, ReadMemoryChangesNothingButSpeed) {
  const AlignedBuffer data = Pattern(8 * kPage, 3);
  ASSERT_TRUE(WriteNow(*device_, 5 * kPage, data).ok());
  AlignedBuffer memory(64 * kPage);
  const std::span<std::byte> within =
      memory.span().subspan(9 * kPage, static_cast<std::size_t>(data.size_bytes()));
  const auto read = [&](std::span<std::byte> into) {
    std::fill(into.begin(), into.end(), std::byte{0});
    absl::Status result = absl::UnknownError("the callback did not run");
    device_->SubmitRead(DeviceOffset(5 * kPage), into, [&](const absl::Status& s) { result = s; });
    Drain(*device_);
    EXPECT_TRUE(result.ok()) << result;
    EXPECT_TRUE(std::equal(into.begin(), into.end(), data.span().begin()));
  };
  for (int round = 0; round < 3; ++round) {  // added, removed, and added again
    device_->AddReadMemory(memory.span());
    const auto* uring = dynamic_cast<const UringDevice*>(device_.get());
    if (uring != nullptr && MayLock(4 * memory.size_bytes())) {
      EXPECT_EQ(uring->registered_memory_count(), 1);
    }
    read(within);
    AlignedBuffer elsewhere(8 * kPage);
    read(elsewhere.span());
    device_->RemoveReadMemory(memory.span());
  }
  read(within);
}

TEST_P(DeviceConformance, MoreReadMemoryThanIsKeptReadyIsUsedLikeAny) {
  const AlignedBuffer data = Pattern(kPage, 4);
  ASSERT_TRUE(WriteNow(*device_, 0, data).ok());
  std::vector<AlignedBuffer> memories;
  for (int i = 0; i < kReadMemoriesMax + 3; ++i) {
    memories.emplace_back(kPage);
    device_->AddReadMemory(memories.back().span());
  }
  for (AlignedBuffer& memory : memories) {
    ASSERT_TRUE(ReadNow(*device_, 0, memory).ok());
    EXPECT_TRUE(SameBytes(memory, data));
    device_->RemoveReadMemory(memory.span());
  }
}

TEST_P(DeviceConformance, BytesNeverWrittenReadAsZeros) {
  AlignedBuffer out = Pattern(2 * kPage, 3);
  ASSERT_TRUE(ReadNow(*device_, 5 * kPage, out).ok());
  EXPECT_TRUE(SameBytes(out, AlignedBuffer(2 * kPage)));
}

TEST_P(DeviceConformance, CallbacksRunInsidePollOnly) {
  AlignedBuffer page(kPage);
  int run = 0;
  for (int i = 0; i < 3 * kDepth; ++i) {
    device_->SubmitRead(DeviceOffset(i * kPage), page.span(), [&](const absl::Status&) { ++run; });
    EXPECT_EQ(run, 0);
  }
  EXPECT_EQ(device_->in_flight_count(), 3 * kDepth);
  int polled = 0;
  while (device_->in_flight_count() > 0) polled += device_->Poll(std::chrono::seconds(1));
  EXPECT_EQ(run, 3 * kDepth);
  EXPECT_EQ(polled, 3 * kDepth);
}

TEST_P(DeviceConformance, RequestsAboveTheQueueDepthAllComplete) {
  constexpr int kCount = 200;
  std::vector<AlignedBuffer> pages;
  int ok = 0;
  for (int i = 0; i < kCount; ++i) {
    pages.push_back(Pattern(kPage, static_cast<std::uint64_t>(i)));
    device_->SubmitWrite(DeviceOffset(i * kPage), pages.back().span(),
                         [&](const absl::Status& status) { ok += status.ok() ? 1 : 0; });
  }
  Drain(*device_);
  EXPECT_EQ(ok, kCount);
  for (int i = 0; i < kCount; ++i) {
    AlignedBuffer out(kPage);
    ASSERT_TRUE(ReadNow(*device_, i * kPage, out).ok());
    EXPECT_TRUE(SameBytes(out, pages[static_cast<std::size_t>(i)])) << "page " << i;
  }
}

TEST_P(DeviceConformance, CallbacksMaySubmitMore) {
  AlignedBuffer page = Pattern(kPage, 4);
  int left = 20;
  std::function<void(absl::Status)> next = [&](const absl::Status& status) {
    ASSERT_TRUE(status.ok());
    if (--left > 0) device_->SubmitWrite(DeviceOffset(left * kPage), page.span(), next);
  };
  device_->SubmitWrite(DeviceOffset(0), page.span(), next);
  Drain(*device_);
  EXPECT_EQ(left, 0);
}

TEST_P(DeviceConformance, KeepBusyWorksOffWhatWaitsAndRunsNoCallback) {
  constexpr int kCount = 3 * kDepth;
  int called_count = 0;
  SubmitReads(kCount, [&] {
    ++called_count;
    device_->KeepBusy();  // may be called from here
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (device_->stats().read_count < kCount) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "requests were not started";
    device_->KeepBusy();
  }
  EXPECT_EQ(called_count, 0);
  EXPECT_EQ(device_->in_flight_count(), kCount);
  EXPECT_EQ(device_->Poll(std::chrono::microseconds(0)), kCount);
  EXPECT_EQ(called_count, kCount);
}

TEST_P(DeviceConformance, KeepBusyInACallbackLosesNoCompletionAndNoWake) {
  constexpr int kCount = 4 * kDepth;
  int called_count = 0;
  SubmitReads(kCount, [&] {
    ++called_count;
    device_->Wake();
    device_->KeepBusy();  // others are in flight
  });
  Drain(*device_);
  EXPECT_EQ(called_count, kCount);
  // The last wake came behind the last wait of Poll().
  device_->Poll(kLongerThanTests);
}

TEST_P(DeviceConformance, PollComesBackWhenNothingHappens) {
  EXPECT_EQ(device_->Poll(std::chrono::microseconds(0)), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(device_->Poll(std::chrono::milliseconds(20)), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(15));
}

TEST_P(DeviceConformance, AWakeBeforePollEndsItsWait) {
  device_->Wake();
  EXPECT_EQ(device_->Poll(kLongerThanTests), 0);
}

TEST_P(DeviceConformance, EveryWakeFromAnotherThreadEndsAWait) {
  std::atomic<int> asked{0};
  std::thread waker([&] {
    for (int done = 0; done < 50;) {
      if (asked.load() > done) {
        device_->Wake();
        ++done;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (int i = 0; i < 50; ++i) {
    asked.fetch_add(1);
    device_->Poll(kLongerThanTests);
  }
  waker.join();
}

TEST_P(DeviceConformance, StatsCountCompletedRequests) {
  AlignedBuffer pages = Pattern(2 * kPage, 5);
  ASSERT_TRUE(WriteNow(*device_, 0, pages).ok());
  ASSERT_TRUE(ReadNow(*device_, 0, pages).ok());
  ASSERT_TRUE(ReadNow(*device_, 0, pages).ok());
  ASSERT_TRUE(FlushNow(*device_).ok());
  EXPECT_EQ(device_->stats().write_count, 1);
  EXPECT_EQ(device_->stats().write_bytes, 2 * kPage);
  EXPECT_EQ(device_->stats().read_count, 2);
  EXPECT_EQ(device_->stats().read_bytes, 4 * kPage);
  EXPECT_EQ(device_->stats().flush_count, 1);
  EXPECT_EQ(device_->stats().error_count, 0);
  EXPECT_EQ(device_->name(), GetParam() == "modelled" ? "memory+ufs4.0" : GetParam());
}

TEST_P(DeviceConformance, DestructionDropsCallbacksAndWaitsForBuffers) {
  std::vector<AlignedBuffer> pages(10);
  for (AlignedBuffer& page : pages) page = AlignedBuffer(kPage);
  bool ran = false;
  for (int i = 0; i < 10; ++i) {
    device_->SubmitRead(DeviceOffset(i * kPage), pages[static_cast<std::size_t>(i)].span(),
                        [&](const absl::Status&) { ran = true; });
  }
  device_.reset();
  EXPECT_FALSE(ran);
}

TEST_P(DeviceConformance, RandomRequestsAgreeWithAModel) {
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  AlignedBuffer model(kDeviceBytes);
  // Batches of requests that do not overlap, because the order of those in flight together is open.
  for (int batch = 0; batch < 60; ++batch) {
    std::vector<AlignedBuffer> buffers;
    std::vector<std::pair<std::int64_t, std::size_t>> reads;
    int ok = 0;
    for (std::int64_t page = below(8); page < kDeviceBytes / kPage - 8; page += 8 + below(16)) {
      const std::int64_t size = (1 + below(8)) * kPage;
      const auto count_ok = [&](const absl::Status& status) { ok += status.ok() ? 1 : 0; };
      if (below(2) == 0) {
        buffers.push_back(Pattern(size, random()));
        std::memcpy(model.data() + page * kPage, buffers.back().data(),
                    static_cast<std::size_t>(size));
        device_->SubmitWrite(DeviceOffset(page * kPage), buffers.back().span(), count_ok);
      } else {
        reads.emplace_back(page * kPage, buffers.size());
        buffers.emplace_back(size);
        device_->SubmitRead(DeviceOffset(page * kPage), buffers.back().span(), count_ok);
      }
      if (below(4) == 0) device_->Poll(std::chrono::microseconds(below(2) * 100));
    }
    Drain(*device_);
    ASSERT_EQ(ok, static_cast<int>(buffers.size()));
    for (const auto& [offset, index] : reads) {
      const AlignedBuffer& got = buffers[index];
      ASSERT_EQ(std::memcmp(got.data(), model.data() + offset,
                            static_cast<std::size_t>(got.size_bytes())),
                0)
          << "offset " << offset << " batch " << batch;
    }
  }
}

using DeviceDeathTest = DeviceConformance;

TEST_P(DeviceDeathTest, MisuseEndsTheProcess) {
  AlignedBuffer page(2 * kPage);
  const IoDone done = [](const absl::Status&) {};
  EXPECT_DEATH(device_->SubmitRead(DeviceOffset(512), page.span(), done), "offset");
  EXPECT_DEATH(device_->SubmitRead(DeviceOffset(0), page.span().first(512), done), "size");
  EXPECT_DEATH(device_->SubmitRead(DeviceOffset(0), page.span().subspan(512, 4096), done),
               "address");
  EXPECT_DEATH(device_->SubmitRead(DeviceOffset(kDeviceBytes), page.span(), done), "offset");
  EXPECT_DEATH(device_->SubmitWrite(DeviceOffset(kDeviceBytes - kPage), page.span(), done),
               "offset");
  EXPECT_DEATH(device_->SubmitRead(DeviceOffset(-kPage), page.span(), done), "offset");
}

TEST_P(DeviceDeathTest, ASecondThreadIsRefused) {
  device_->Poll(std::chrono::microseconds(0));
  EXPECT_DEATH(std::thread([&] { device_->Poll(std::chrono::microseconds(0)); }).join(), "owner_");
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance,
                         testing::Values("memory", "modelled", "faulty", "threads", "io_uring"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Devices, DeviceDeathTest, testing::Values("memory", "threads", "io_uring"),
                         [](const auto& test) { return test.param; });

TEST(MemoryDevice, CostsOnlyWhatIsWritten) {
  MemoryDevice device(std::int64_t{1} << 40);
  AlignedBuffer page = Pattern(kPage, 6);
  AlignedBuffer out(kPage);
  ASSERT_TRUE(ReadNow(device, std::int64_t{1} << 39, out).ok());
  EXPECT_EQ(device.allocated_bytes(), 0);
  ASSERT_TRUE(WriteNow(device, std::int64_t{1} << 39, page).ok());
  EXPECT_LE(device.allocated_bytes(), 1 << 20);
}

TEST(MemoryDevice, GrowsWithoutLosingBytes) {
  MemoryDevice device(2 * kPage);
  const AlignedBuffer page = Pattern(kPage, 7);
  ASSERT_TRUE(WriteNow(device, kPage, page).ok());
  device.Grow(1000 * kPage);
  AlignedBuffer out(kPage);
  ASSERT_TRUE(ReadNow(device, kPage, out).ok());
  EXPECT_TRUE(SameBytes(out, page));
  EXPECT_TRUE(WriteNow(device, 999 * kPage, page).ok());
}

}  // namespace
}  // namespace cairn::kv
