#include "kv-node/engine/io/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace cairn::kv {

SharedBuffer BufferPool::MakeZeroed(std::int64_t size_bytes) {
  std::unique_ptr<AlignedBuffer> buffer = TakeKept(size_bytes, size_bytes);
  if (buffer == nullptr) return Share(std::make_unique<AlignedBuffer>(size_bytes));
  std::ranges::fill(buffer->span(), std::byte{0});
  return Share(std::move(buffer));
}

SharedBuffer BufferPool::MakeForRead(std::int64_t size_bytes) {
  // Not one of more than twice the size: it would count against the limit for nothing.
  std::unique_ptr<AlignedBuffer> buffer = TakeKept(size_bytes, 2 * size_bytes);
  if (buffer == nullptr) buffer = std::make_unique<AlignedBuffer>(size_bytes);
  return Share(std::move(buffer));
}

SharedBuffer BufferPool::Share(std::unique_ptr<AlignedBuffer> buffer) {
  used_bytes_.fetch_add(buffer->size_bytes());
  return {buffer.release(), [pool = shared_from_this()](AlignedBuffer* gone) {
            pool->Release(std::unique_ptr<AlignedBuffer>(gone));
          }};
}

std::unique_ptr<AlignedBuffer> BufferPool::TakeKept(std::int64_t bytes_min,
                                                    std::int64_t bytes_max) {
  MutexLock lock(mutex_);
  const auto fits = [&](const std::unique_ptr<AlignedBuffer>& buffer) {
    return buffer->size_bytes() >= bytes_min && buffer->size_bytes() <= bytes_max;
  };
  const auto found = std::find_if(kept_.rbegin(), kept_.rend(), fits);
  if (found == kept_.rend()) return nullptr;
  std::unique_ptr<AlignedBuffer> buffer = std::move(*found);
  kept_.erase(std::next(found).base());
  kept_bytes_ -= buffer->size_bytes();
  return buffer;
}

void BufferPool::Release(std::unique_ptr<AlignedBuffer> buffer) {
  used_bytes_.fetch_sub(buffer->size_bytes());
  std::vector<std::unique_ptr<AlignedBuffer>> dropped;  // unmapped without the lock
  MutexLock lock(mutex_);
  if (buffer->size_bytes() <= kKeptBufferBytesMax) {
    kept_bytes_ += buffer->size_bytes();
    kept_.push_back(std::move(buffer));
    while (kept_bytes_ > kKeptBytesMax) {
      kept_bytes_ -= kept_.front()->size_bytes();
      dropped.push_back(std::move(kept_.front()));
      kept_.erase(kept_.begin());
    }
  }
  if (wake_wanted_.exchange(false) && wake_) wake_();
}

std::int64_t BufferPool::kept_bytes() const {
  MutexLock lock(mutex_);
  return kept_bytes_;
}

void BufferPool::SetWake(std::function<void()> wake) {
  MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void ReplyBuffers::HandOver(std::shared_ptr<std::atomic<std::int64_t>> session_bytes) {
  session_bytes_ = std::move(session_bytes);
  for (const SharedBuffer& buffer : buffers_) unsent_bytes_ += buffer->size_bytes();
  session_bytes_->fetch_add(unsent_bytes_);
  pool_->unsent_bytes_.fetch_add(unsent_bytes_);
}

// The counts go before the buffers, whose release wakes who waits for room.
ReplyBuffers::~ReplyBuffers() {
  if (session_bytes_ == nullptr) return;
  pool_->unsent_bytes_.fetch_sub(unsent_bytes_);
  session_bytes_->fetch_sub(unsent_bytes_);
}

}  // namespace cairn::kv
