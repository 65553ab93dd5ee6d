// DamagedConversations are those in which a turn found damage when it had shown tokens already: the
// next turn computes them again before it begins. Only this process knows of them; after a restart
// the turn that reads what is damaged finds it again.
//
// Limits:     kDamagedConversationsMax; beyond it the one that was noted first is forgotten.
// Threading:  safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "common/base/mutex.h"
#include "common/kv/messages.h"

namespace cairn::compute {

inline constexpr std::size_t kDamagedConversationsMax = 1024;

class DamagedConversations {
 public:
  void Note(const SessionRef& conversation) {
    const MutexLock lock(mutex_);
    std::erase(noted_, conversation);
    noted_.push_back(conversation);
    if (noted_.size() > kDamagedConversationsMax) noted_.pop_front();
  }
  bool Has(const SessionRef& conversation) const {
    const MutexLock lock(mutex_);
    return std::find(noted_.begin(), noted_.end(), conversation) != noted_.end();
  }
  void Forget(const SessionRef& conversation) {
    const MutexLock lock(mutex_);
    std::erase(noted_, conversation);
  }

 private:
  mutable Mutex mutex_;
  std::deque<SessionRef> noted_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
