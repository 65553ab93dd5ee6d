// LeaseReturns collects the fetches whose replies nobody uses any more, until the next message
// takes them along: a lease is given back without a message of its own.
//
// Threading:  safe from any thread.
// Ownership:  shared by the stream's end and its replies, so that a reply may outlive the stream.
// Limits:     none of its own: the KV node bounds leases, and answers inline beyond.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/messages.h"

namespace cairn::compute {

class LeaseReturns : public std::enable_shared_from_this<LeaseReturns> {
 public:
  // What a reply holds: its end returns the lease of the fetch.
  std::shared_ptr<const void> Hold(RequestId fetch) {
    return {this, [self = shared_from_this(), fetch](const void*) { self->Add(fetch); }};
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return returned_.empty();
  }
  std::vector<RequestId> Take() {
    MutexLock lock(mutex_);
    return std::exchange(returned_, {});
  }

 private:
  void Add(RequestId fetch) {
    MutexLock lock(mutex_);
    returned_.push_back(fetch);
  }

  mutable Mutex mutex_;
  std::vector<RequestId> returned_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
