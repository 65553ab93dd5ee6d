#include "tests/tools/faulty_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kPageSize = kIoAlignmentBytes;
// A corrupt page differs in one byte of each of this many parts of it.
constexpr std::size_t kFlipCount = 3;

void Flip(std::span<std::byte> page, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t part = kPageSize / kFlipCount;
  for (std::size_t i = 0; i < kFlipCount; ++i) {
    page[i * part + random() % part] ^= static_cast<std::byte>(1 + random() % 255);
  }
}

}  // namespace

class FaultyDevice : public Device {
 public:
  FaultyDevice(FaultyDisk& disk, std::int64_t size_bytes)
      : Device(size_bytes, kQueueDepthMax), disk_(disk) {}
  ~FaultyDevice() override;
  FaultyDevice(const FaultyDevice&) = delete;
  FaultyDevice& operator=(const FaultyDevice&) = delete;

  void Wake() override;
  std::string_view name() const override { return "faulty"; }

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;

 private:
  friend class FaultyDisk;
  struct InFlight {
    Transfer transfer;
    std::int64_t polls_left = 0;
    std::int64_t flush_sequence = 0;
    std::int64_t result = 0;
  };

  // Tells the analysis that the disk that calls, and holds its mutex, is disk_.
  void IsCalledByItsDisk() const CAIRN_ANNOTATION(assert_capability(disk_.mutex_)) {}
  std::vector<InFlight> TakeDue() CAIRN_REQUIRES(disk_.mutex_);
  std::int64_t Execute(const InFlight& in_flight) CAIRN_REQUIRES(disk_.mutex_);
  void WaitForWake(std::chrono::microseconds wait) CAIRN_REQUIRES(disk_.mutex_);

  FaultyDisk& disk_;
  CondVar woken_cond_;
  bool woken_ CAIRN_GUARDED_BY(disk_.mutex_) = false;
  bool dead_ CAIRN_GUARDED_BY(disk_.mutex_) = false;
  std::vector<InFlight> in_flight_ CAIRN_GUARDED_BY(disk_.mutex_);
};

FaultyDevice::~FaultyDevice() {
  MutexLock lock(disk_.mutex_);
  // After a power cut the disk may already have its next device.
  if (disk_.device_ == this) disk_.device_ = nullptr;
  for (const InFlight& in_flight : in_flight_) {
    const bool write = in_flight.transfer.kind == IoKind::kWrite;
    if (write && !dead_ && disk_.Random(2) == 0) Execute(in_flight);
  }
}

void FaultyDevice::Wake() {
  MutexLock lock(disk_.mutex_);
  woken_ = true;
  woken_cond_.NotifyOne();
}

void FaultyDevice::Start(const Transfer& transfer) {
  MutexLock lock(disk_.mutex_);
  in_flight_.push_back({.transfer = transfer,
                        .polls_left = disk_.Random(disk_.options_.delay_polls_max + 1),
                        .flush_sequence = disk_.last_sequence_});
}

std::int64_t FaultyDevice::Execute(const InFlight& in_flight) {
  const Transfer& transfer = in_flight.transfer;
  const auto size = static_cast<std::size_t>(transfer.size_bytes);
  if (dead_ || !disk_.TakeStep(transfer.kind == IoKind::kRead)) return -ENODEV;
  switch (transfer.kind) {
    case IoKind::kRead:
      return disk_.Read(transfer.offset_bytes, {transfer.data, size});
    case IoKind::kWrite:
      return disk_.Write(transfer.offset_bytes, {transfer.data, size});
    case IoKind::kFlush:
      return disk_.Flush(in_flight.flush_sequence);
  }
  return -EINVAL;
}

std::vector<FaultyDevice::InFlight> FaultyDevice::TakeDue() {
  std::vector<InFlight> due;
  std::vector<InFlight> later;
  for (InFlight& in_flight : in_flight_) {
    const bool is_due = dead_ || in_flight.polls_left-- == 0;
    (is_due ? due : later).push_back(in_flight);
  }
  in_flight_ = std::move(later);
  if (disk_.options_.delay_polls_max > 0) std::shuffle(due.begin(), due.end(), disk_.random_);
  return due;
}

void FaultyDevice::WaitForWake(std::chrono::microseconds wait) {
  // The kernel's timers are late by 50 us and more: an engine that is busy must not pay that each
  // time, or a test that asks without pause keeps it busy for ever.
  if (wait.count() == 0) return;
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (!woken_ && woken_cond_.WaitUntil(disk_.mutex_, deadline)) {
  }
}

void FaultyDevice::Wait(std::chrono::microseconds wait) {
  std::vector<InFlight> due;
  {
    MutexLock lock(disk_.mutex_);
    if (in_flight_.empty()) WaitForWake(wait);
    woken_ = false;
    due = TakeDue();
    for (InFlight& in_flight : due) in_flight.result = Execute(in_flight);
  }
  for (const InFlight& in_flight : due) Finish(in_flight.transfer.slot, in_flight.result);
}

FaultyDisk::FaultyDisk(const FaultyDiskOptions& options)
    : options_(options), random_(options.seed), durable_(options.size_bytes) {
  CAIRN_CHECK_GE(options.delay_polls_max, 0);
}

std::unique_ptr<Device> FaultyDisk::Open() { return Open(options_.size_bytes); }

std::unique_ptr<Device> FaultyDisk::Open(std::int64_t size_bytes) {
  CAIRN_CHECK_LE(size_bytes, options_.size_bytes);
  auto device = std::make_unique<FaultyDevice>(*this, size_bytes);
  MutexLock lock(mutex_);
  CAIRN_CHECK(device_ == nullptr);
  device_ = device.get();
  return device;
}

std::int64_t FaultyDisk::Random(std::int64_t below) {
  return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
}

bool FaultyDisk::Take(int& count, int& hit_count) {
  if (count == 0) return false;
  --count;
  ++hit_count;
  return true;
}

std::size_t FaultyDisk::Shortened(std::size_t size) {
  if (!Take(faults_.shorten, hits_.shortened)) return size;
  const std::int64_t sector_count = static_cast<std::int64_t>(size) / kSectorBytes;
  return static_cast<std::size_t>((1 + Random(sector_count - 1)) * kSectorBytes);
}

FaultyDisk::Page FaultyDisk::Pristine(std::int64_t page) {
  const auto unflushed = unflushed_.find(page);
  if (unflushed != unflushed_.end()) return unflushed->second.back().bytes;
  Page bytes(kPageSize);
  durable_.Read(page * kIoAlignmentBytes, bytes);
  return bytes;
}

std::int64_t FaultyDisk::Read(std::int64_t offset_bytes, std::span<std::byte> out) {
  if (Take(faults_.fail_reads, hits_.failed_reads)) return -EIO;
  const bool flips = Take(faults_.flip_reads, hits_.flipped_reads);
  out = out.first(Shortened(out.size()));
  for (std::size_t done = 0; done < out.size(); done += kPageSize) {
    const std::int64_t page = (offset_bytes + static_cast<std::int64_t>(done)) / kIoAlignmentBytes;
    Page bytes = Pristine(page);
    if (flips) Flip(bytes, random_());
    const auto corrupt = corrupt_.find(page);
    if (corrupt != corrupt_.end()) {
      Flip(bytes, corrupt->second);
      ++hits_.corrupt_pages_read;
    }
    std::memcpy(out.data() + done, bytes.data(), std::min(kPageSize, out.size() - done));
  }
  return static_cast<std::int64_t>(out.size());
}

std::int64_t FaultyDisk::Write(std::int64_t offset_bytes, std::span<const std::byte> data) {
  if (Take(faults_.fail_writes, hits_.failed_writes)) return -EIO;
  data = data.first(Shortened(data.size()));
  if (Take(faults_.misdirect_writes, hits_.misdirected_writes)) {
    const auto size = static_cast<std::int64_t>(data.size() + kPageSize - 1);
    offset_bytes = Random((options_.size_bytes - size) / kIoAlignmentBytes + 1) * kIoAlignmentBytes;
  }
  if (!Take(faults_.lose_writes, hits_.lost_writes)) Store(offset_bytes, data);
  return static_cast<std::int64_t>(data.size());
}

void FaultyDisk::Store(std::int64_t offset_bytes, std::span<const std::byte> data) {
  for (std::size_t done = 0; done < data.size(); done += kPageSize) {
    const std::int64_t page = (offset_bytes + static_cast<std::int64_t>(done)) / kIoAlignmentBytes;
    Page bytes = Pristine(page);
    std::memcpy(bytes.data(), data.data() + done, std::min(kPageSize, data.size() - done));
    unflushed_[page].push_back({std::move(bytes), ++last_sequence_});
    corrupt_.erase(page);
  }
}

std::int64_t FaultyDisk::Flush(std::int64_t sequence) {
  if (Take(faults_.fail_flushes, hits_.failed_flushes)) return -EIO;
  for (auto entry = unflushed_.begin(); entry != unflushed_.end();) {
    std::vector<Version>& versions = entry->second;
    const auto later = std::find_if(versions.begin(), versions.end(), [&](const Version& version) {
      return version.sequence > sequence;
    });
    if (later != versions.begin()) {
      durable_.Write(entry->first * kIoAlignmentBytes, (later - 1)->bytes);
      versions.erase(versions.begin(), later);
    }
    entry = versions.empty() ? unflushed_.erase(entry) : std::next(entry);
  }
  return 0;
}

void FaultyDisk::Tear(std::int64_t page, std::vector<Page> versions) {
  Page durable(kPageSize);
  durable_.Read(page * kIoAlignmentBytes, durable);
  versions.push_back(durable);
  constexpr auto kSector = static_cast<std::size_t>(kSectorBytes);
  for (std::size_t sector = 0; sector < kPageSize; sector += kSector) {
    const auto chosen =
        static_cast<std::size_t>(Random(static_cast<std::int64_t>(versions.size())));
    std::memcpy(durable.data() + sector, versions[chosen].data() + sector, kSector);
  }
  durable_.Write(page * kIoAlignmentBytes, durable);
}

void FaultyDisk::PowerCut() {
  MutexLock lock(mutex_);
  std::map<std::int64_t, std::vector<Page>> candidates;
  for (const auto& [page, versions] : unflushed_) {
    for (const Version& version : versions) candidates[page].push_back(version.bytes);
  }
  if (device_ != nullptr) {
    device_->IsCalledByItsDisk();
    for (const FaultyDevice::InFlight& in_flight : device_->in_flight_) {
      const FaultyDevice::Transfer& transfer = in_flight.transfer;
      if (transfer.kind != FaultyDevice::IoKind::kWrite) continue;
      for (std::int64_t done = 0; done < transfer.size_bytes; done += kIoAlignmentBytes) {
        const std::int64_t page = (transfer.offset_bytes + done) / kIoAlignmentBytes;
        candidates[page].emplace_back(transfer.data + done, transfer.data + done + kPageSize);
      }
    }
    device_->dead_ = true;
    device_->woken_ = true;
    device_->woken_cond_.NotifyOne();
    device_ = nullptr;
  }
  unflushed_.clear();
  for (auto& [page, versions] : candidates) Tear(page, std::move(versions));
  faults_ = {};
}

void FaultyDisk::DieAfter(std::int64_t step_count) {
  CAIRN_CHECK_GE(step_count, 0);
  MutexLock lock(mutex_);
  faults_.steps_left = step_count;
}

// Whether the device still answers.
bool FaultyDisk::TakeStep(bool is_read) {
  if (faults_.steps_left == 0) return false;
  if (faults_.steps_left > 0 && !is_read) --faults_.steps_left;
  return true;
}

void FaultyDisk::CorruptPage(std::int64_t page) {
  CAIRN_CHECK_GE(page, 0);
  CAIRN_CHECK_LT(page, options_.size_bytes / kIoAlignmentBytes);
  MutexLock lock(mutex_);
  corrupt_[page] = random_();
}

void FaultyDisk::FailNextReads(int count) {
  MutexLock lock(mutex_);
  faults_.fail_reads = count;
}

void FaultyDisk::FlipNextReads(int count) {
  MutexLock lock(mutex_);
  faults_.flip_reads = count;
}

void FaultyDisk::FailNextWrites(int count) {
  MutexLock lock(mutex_);
  faults_.fail_writes = count;
}

void FaultyDisk::FailNextFlushes(int count) {
  MutexLock lock(mutex_);
  faults_.fail_flushes = count;
}

void FaultyDisk::ShortenNext(int count) {
  MutexLock lock(mutex_);
  faults_.shorten = count;
}

void FaultyDisk::LoseNextWrites(int count) {
  MutexLock lock(mutex_);
  faults_.lose_writes = count;
}

void FaultyDisk::MisdirectNextWrites(int count) {
  MutexLock lock(mutex_);
  faults_.misdirect_writes = count;
}

FaultyDiskHits FaultyDisk::hits() {
  MutexLock lock(mutex_);
  return hits_;
}

void FaultyDisk::ForgetFaults() {
  MutexLock lock(mutex_);
  faults_ = {};
}

std::vector<std::byte> FaultyDisk::PageBytes(std::int64_t page) {
  MutexLock lock(mutex_);
  return Pristine(page);
}

std::vector<std::byte> FaultyDisk::DurablePageBytes(std::int64_t page) {
  MutexLock lock(mutex_);
  Page bytes(kPageSize);
  durable_.Read(page * kIoAlignmentBytes, bytes);
  return bytes;
}

std::vector<std::byte> FaultyDisk::Copy() {
  MutexLock lock(mutex_);
  std::vector<std::byte> copy(static_cast<std::size_t>(options_.size_bytes));
  durable_.Read(0, copy);
  for (const auto& [page, versions] : unflushed_) {
    const Page& bytes = versions.back().bytes;
    std::memcpy(copy.data() + page * kIoAlignmentBytes, bytes.data(), bytes.size());
  }
  return copy;
}

void FaultyDisk::PutBack(std::span<const std::byte> copy) {
  MutexLock lock(mutex_);
  CAIRN_CHECK(device_ == nullptr);
  CAIRN_CHECK_EQ(std::ssize(copy), options_.size_bytes);
  unflushed_.clear();
  corrupt_.clear();
  durable_.Write(0, copy);
}

std::int64_t FaultyDisk::unflushed_page_count() {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(unflushed_.size());
}

}  // namespace cairn::kv
