// Device is the flash below the KV node: asynchronous reads, writes and flushes of whole pages,
// completed from Poll(). Implementations: io_uring and a thread pool (both opened through
// file_device.h), memory (memory_device.h), a slower one modelled above another
// (modelled_device.h).
//
// Units:      offsets and sizes in bytes; offset, size and buffer address are multiples of
//             kIoAlignmentBytes.
// Threading:  one owner, the first thread that submits or polls; every method checks it. Wake() is
//             for any thread.
// Blocking:   only Poll(), for at most its argument. The destructor waits for I/O that the kernel
//             holds.
// Ownership:  a buffer belongs to its request until the callback ran. Destroying a device drops
//             callbacks without running them; it must happen on the owner's thread while requests
//             are in flight.
// Errors:     delivered to the callback: INTERNAL for EIO, RESOURCE_EXHAUSTED for ENOSPC, as
//             ErrnoStatus() maps them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/strong_id.h"
#include "common/io/aligned_buffer.h"

namespace cairn::kv {

using DeviceOffset = StrongId<struct DeviceOffsetTag>;  // bytes from the start of the device
using IoDone = std::function<void(absl::Status)>;

// Who waits for a request, the most urgent first. See SubmitRead.
enum class IoClass : std::uint8_t { kDemand, kWriteBack, kDefragment };
inline constexpr int kIoClassCount = 3;
// See SubmitRead.
inline constexpr int kPassedOverMax = 16;

inline constexpr int kQueueDepthDefault = 32;
inline constexpr int kQueueDepthMax = 4096;
// Submitted and not yet delivered. The engine bounds what it submits far below this; passing it is
// a programmer error.
inline constexpr int kRequestCountMax = 65536;
inline constexpr std::int64_t kRequestBytesMax = std::int64_t{256} << 20;

// Counted when a request completes without an error.
struct DeviceStats {
  std::int64_t read_count = 0;
  std::int64_t read_bytes = 0;
  std::int64_t write_count = 0;
  std::int64_t write_bytes = 0;
  std::int64_t flush_count = 0;
  std::int64_t error_count = 0;  // requests that completed with an error
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Whole or nothing: a short transfer is continued; what cannot be completed is an error. `done`
  // runs inside Poll(), never inside Submit*(), and may submit more. Requests in flight together
  // may complete in any order.
  // Requests above the queue depth wait: those of the most urgent class start first, those of one
  // class in order of submission. No class starves: when kPassedOverMax requests of more urgent
  // classes have started while a class waited, its first request is next (of several such classes,
  // the one that was passed over most often).
  void SubmitRead(DeviceOffset offset, std::span<std::byte> buffer, IoDone done,
                  IoClass io_class = IoClass::kDemand);
  void SubmitWrite(DeviceOffset offset, std::span<const std::byte> buffer, IoDone done,
                   IoClass io_class = IoClass::kDemand);
  // fdatasync: every write whose callback ran before this call is durable when `done` gets an OK
  // status.
  void SubmitFlush(IoDone done, IoClass io_class = IoClass::kDemand);

  // Memory that many reads will go to, aligned as a buffer is: a device that can keeps its pages
  // ready for them. A hint of speed: whether it was taken makes no other difference. Between the
  // two calls the memory stays mapped; at the second no request may use it.
  virtual void AddReadMemory(std::span<std::byte> memory) { static_cast<void>(memory); }
  virtual void RemoveReadMemory(std::span<std::byte> memory) { static_cast<void>(memory); }

  // Runs the callbacks of completed requests. With nothing completed it waits up to `wait` for a
  // completion or Wake(). Returns the number of callbacks run. Not to be called from a callback.
  int Poll(std::chrono::microseconds wait);

  // Takes in what has completed and starts what waits for that, so that the device has work during
  // a long piece of the owner's. Runs no callback, and may be called from one.
  void KeepBusy();

  // Ends the current or the next wait of Poll().
  virtual void Wake() = 0;

  std::int64_t size_bytes() const { return size_bytes_; }
  // Requests that are worked on at once.
  int queue_depth() const { return queue_depth_; }
  // Submitted requests whose callback has not run.
  int in_flight_count() const { return in_flight_count_; }
  const DeviceStats& stats() const { return stats_; }
  virtual std::string_view name() const = 0;
  // What errors call the device: the path of its file.
  void set_path(std::string path) { path_ = std::move(path); }

 protected:
  enum class IoKind : std::uint8_t { kRead, kWrite, kFlush };

  // What an implementation has to transfer: one request, or the rest of one after a short transfer.
  struct Transfer {
    IoKind kind = IoKind::kFlush;
    int slot = 0;  // names the request in Finish(); in [0, queue_depth)
    std::int64_t offset_bytes = 0;
    std::byte* data = nullptr;  // of a write: only read from
    std::int64_t size_bytes = 0;
  };

  Device(std::int64_t size_bytes, int queue_depth);

  // Takes a transfer. Must not call Finish().
  virtual void Start(const Transfer& transfer) = 0;
  // Hands everything started to the kernel, waits up to `wait` for a completion or a wake-up, and
  // calls Finish() for each completed transfer.
  virtual void Wait(std::chrono::microseconds wait) = 0;
  // Hands everything started to the kernel without waiting.
  virtual void SubmitStarted() {}

  // `result`: bytes transferred (0 of a flush), or a negative errno.
  void Finish(int slot, std::int64_t result);
  // For a device above another one, which continues short transfers: the whole transfer ended.
  void FinishWhole(int slot, absl::Status status);

  // Transfers that the implementation holds: started and not finished.
  int started_count() const { return started_count_; }
  // Every slot is taken and more requests wait for one.
  bool has_backlog() const {
    return in_flight_count_ - static_cast<int>(completed_.size()) > queue_depth_;
  }
  void CheckOwner();
  void set_size_bytes(std::int64_t size_bytes) { size_bytes_ = size_bytes; }

 private:
  struct Request {
    IoKind kind = IoKind::kFlush;
    std::int64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::int64_t size_bytes = 0;
    std::int64_t transferred_bytes = 0;
    int retry_count = 0;
    IoDone done;
  };
  // Requests of one class that wait for a slot.
  struct Queue {
    std::deque<Request> requests;
    int passed_over_count = 0;  // more urgent requests that started since its first one waits
  };
  struct Completed {
    absl::Status status;
    IoDone done;
  };

  void Submit(Request request, IoClass io_class);
  void CheckRange(DeviceOffset offset, const std::byte* data, std::size_t size) const;
  void StartQueued();
  Queue* NextQueue();
  void StartSlot(int slot);
  void Complete(int slot, absl::Status status);
  int RunCallbacks();
  absl::Status Failure(const Request& request, int error_number) const;

  std::int64_t size_bytes_;
  const int queue_depth_;
  std::string path_ = "the device";
  std::thread::id owner_;  // set by the first submit or poll
  bool in_callbacks_ = false;
  bool kept_busy_ = false;  // since the last Poll: a Wake() may have come meanwhile
  int in_flight_count_ = 0;
  int started_count_ = 0;
  std::vector<Request> slots_;
  std::vector<int> free_slots_;
  std::array<Queue, kIoClassCount> queues_;  // all together bounded by kRequestCountMax
  std::vector<Completed> completed_;         // its callbacks run next
  std::vector<Completed> running_;           // its callbacks run now
  DeviceStats stats_;
};

}  // namespace cairn::kv
