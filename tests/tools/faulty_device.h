// FaultyDisk is a disk in memory that fails on demand, for tests; its devices are a process's views
// of it. A test makes a disk, opens a device on it for the code under test, injects faults, cuts
// the power, and opens the next device.
//
// Fault model, all from one seed:
// - Volatile write cache: a completed write is visible at once, and durable when a flush that was
//   submitted after its callback ran has completed. PowerCut() leaves each 512-byte sector of each
//   page with unflushed writes at any of its versions: the durable one, or that of any write since,
//   in-flight writes included.
// - In-flight writes are invisible until they complete; completions come late and in any order
//   (`delay_polls_max`).
// - CorruptPage(): bits of a page flip as it is read, until it is written again.
// - FlipNextReads(): the bytes come wrong, once.
// - DieAfter(): the device goes away between two steps of whoever uses it; what it had not flushed
//   is torn by the PowerCut() that must follow.
// - FailNextReads/Writes/Flushes(): EIO, nothing transferred.
// - ShortenNext(): a transfer ends early, also within a page.
// - LoseNextWrites(): completes, but stores nothing. MisdirectNextWrites(): stores at another place
//   of the disk. What was written stays pristine: corruption is laid over it on reading.
//
// Threading: a disk is safe from any thread; its devices follow Device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/device/device.h"
#include "kv-node/device/sparse_bytes.h"
#include "tests/tools/sector.h"

namespace cairn::kv {

class FaultyDevice;

struct FaultyDiskOptions {
  std::int64_t size_bytes = 0;
  std::uint64_t seed = 1;
  // Each transfer completes in one of the next this many calls of Poll(); 0: in the next, in order.
  int delay_polls_max = 0;
};

// Faults that happened, of all that were asked for.
struct FaultyDiskHits {
  int failed_reads = 0;
  int flipped_reads = 0;
  int failed_writes = 0;
  int failed_flushes = 0;
  int shortened = 0;
  int lost_writes = 0;
  int misdirected_writes = 0;
  int corrupt_pages_read = 0;
};

class FaultyDisk {
 public:
  explicit FaultyDisk(const FaultyDiskOptions& options);

  // A view of the disk, or of its first `size_bytes`. At most one is open at a time (a power cut
  // closes it); the disk outlives it. Destroying one with writes in flight stores some of them.
  std::unique_ptr<Device> Open();
  std::unique_ptr<Device> Open(std::int64_t size_bytes);

  // A device that is open answers every request in flight and to come with an error (ENODEV).
  // Injected failures that did not happen yet are forgotten.
  void PowerCut();
  // After so many more writes and flushes every transfer fails with ENODEV, until PowerCut().
  void DieAfter(std::int64_t step_count);
  void CorruptPage(std::int64_t page);
  void FailNextReads(int count);
  void FlipNextReads(int count);
  void FailNextWrites(int count);
  void FailNextFlushes(int count);
  void ShortenNext(int count);
  void LoseNextWrites(int count);
  void MisdirectNextWrites(int count);
  FaultyDiskHits hits();
  // Forgets injected failures that did not happen yet; damaged pages stay damaged.
  void ForgetFaults();

  // What a read of the page would give, without corruption.
  std::vector<std::byte> PageBytes(std::int64_t page);
  // What is left of it when the power goes off and no write since the last flush has arrived.
  std::vector<std::byte> DurablePageBytes(std::int64_t page);
  // All pages, as PageBytes.
  std::vector<std::byte> Copy();
  // The disk is what it was at the Copy, durably and undamaged. REQUIRES: no device is open.
  void PutBack(std::span<const std::byte> copy);
  // Pages that a power cut now could set back.
  std::int64_t unflushed_page_count();

 private:
  friend class FaultyDevice;
  using Page = std::vector<std::byte>;
  struct Version {
    Page bytes;
    std::int64_t sequence = 0;
  };
  struct Faults {
    int fail_reads = 0;
    int flip_reads = 0;
    int fail_writes = 0;
    int fail_flushes = 0;
    int shorten = 0;
    int lose_writes = 0;
    int misdirect_writes = 0;
    std::int64_t steps_left = -1;  // until the device dies; -1: never
  };

  // Of one transfer; the result is that of the system call.
  std::int64_t Read(std::int64_t offset_bytes, std::span<std::byte> out) CAIRN_REQUIRES(mutex_);
  std::int64_t Write(std::int64_t offset_bytes, std::span<const std::byte> data)
      CAIRN_REQUIRES(mutex_);
  // Makes durable what was stored up to `sequence`.
  std::int64_t Flush(std::int64_t sequence) CAIRN_REQUIRES(mutex_);

  void Store(std::int64_t offset_bytes, std::span<const std::byte> data) CAIRN_REQUIRES(mutex_);
  Page Pristine(std::int64_t page) CAIRN_REQUIRES(mutex_);
  void Tear(std::int64_t page, std::vector<Page> versions) CAIRN_REQUIRES(mutex_);
  std::size_t Shortened(std::size_t size) CAIRN_REQUIRES(mutex_);
  std::int64_t Random(std::int64_t below) CAIRN_REQUIRES(mutex_);
  bool TakeStep(bool is_read) CAIRN_REQUIRES(mutex_);
  // Whether one of `count` happens now.
  static bool Take(int& count, int& hit_count);

  const FaultyDiskOptions options_;
  Mutex mutex_;
  std::mt19937_64 random_ CAIRN_GUARDED_BY(mutex_);
  SparseBytes durable_ CAIRN_GUARDED_BY(mutex_);
  // By page, oldest first.
  std::map<std::int64_t, std::vector<Version>> unflushed_ CAIRN_GUARDED_BY(mutex_);
  std::int64_t last_sequence_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::map<std::int64_t, std::uint64_t> corrupt_
      CAIRN_GUARDED_BY(mutex_);  // page: seed of its flips
  Faults faults_ CAIRN_GUARDED_BY(mutex_);
  FaultyDiskHits hits_ CAIRN_GUARDED_BY(mutex_);
  FaultyDevice* device_ CAIRN_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace cairn::kv
