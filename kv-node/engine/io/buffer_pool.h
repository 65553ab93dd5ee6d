// BufferPool makes the engine's buffers and accounts their memory. It keeps some of the freed ones
// for the next: mapping and unmapping the buffer of every fetch costs more processor time than
// copying its bytes.
//
// Threading:  safe from any thread; buffers are released on any thread (gRPC's, when a reply was
//             sent).
// Ownership:  held by its buffers too: it outlives the engine with the last of them.
// Limits:     kKeptBytesMax for what is kept. What is handed out is the caller's to bound, by
//             used_bytes().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/io/aligned_buffer.h"

namespace cairn::kv {

using SharedBuffer = std::shared_ptr<AlignedBuffer>;

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Freed bytes that wait for the next buffer: those of a fetch.
  static constexpr std::int64_t kKeptBytesMax = std::int64_t{2} << 20;
  // A larger one is not kept.
  static constexpr std::int64_t kKeptBufferBytesMax = kKeptBytesMax;

  // Zeros.
  SharedBuffer MakeZeroed(std::int64_t size_bytes);
  // At least `size_bytes`; what they hold is anything, of any session.
  SharedBuffer MakeForRead(std::int64_t size_bytes);

  // Bytes of the buffers that are handed out.
  std::int64_t used_bytes() const { return used_bytes_.load(); }
  // Of them, those of answers that were handed over and that somebody still reads or sends.
  std::int64_t unsent_bytes() const { return unsent_bytes_.load(); }
  std::int64_t kept_bytes() const;
  // The next buffer that is released calls the wake function.
  void WakeAtRelease() { wake_wanted_.store(true); }
  // nullptr: nobody to wake any more.
  void SetWake(std::function<void()> wake);

 private:
  friend class ReplyBuffers;

  SharedBuffer Share(std::unique_ptr<AlignedBuffer> buffer);
  std::unique_ptr<AlignedBuffer> TakeKept(std::int64_t bytes_min, std::int64_t bytes_max);
  void Release(std::unique_ptr<AlignedBuffer> buffer);

  std::atomic<std::int64_t> used_bytes_{0};
  std::atomic<std::int64_t> unsent_bytes_{0};
  std::atomic<bool> wake_wanted_{false};
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<AlignedBuffer>> kept_ CAIRN_GUARDED_BY(mutex_);  // oldest first
  std::int64_t kept_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::function<void()> wake_ CAIRN_GUARDED_BY(mutex_);
};

// The buffers of one answer, which are released together.
class ReplyBuffers {
 public:
  explicit ReplyBuffers(BufferPool& pool) : pool_(pool.shared_from_this()) {}
  ~ReplyBuffers();
  ReplyBuffers(const ReplyBuffers&) = delete;
  ReplyBuffers& operator=(const ReplyBuffers&) = delete;

  // On the engine thread, before HandOver.
  void Add(const SharedBuffer& buffer) { buffers_.push_back(buffer); }
  // From here on the bytes count as unsent, in the pool and for the session, as long as this lives.
  void HandOver(std::shared_ptr<std::atomic<std::int64_t>> session_bytes);

 private:
  const std::shared_ptr<BufferPool> pool_;
  std::vector<SharedBuffer> buffers_;
  std::shared_ptr<std::atomic<std::int64_t>> session_bytes_;
  std::int64_t unsent_bytes_ = 0;
};

}  // namespace cairn::kv
