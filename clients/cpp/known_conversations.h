// The uids of the conversations that a client has heard of: a request that names one by its number
// is to reach that one, also when the daemon has another store meanwhile.
//
// Threading:  safe from any thread.
// Limits:     kKnownConversationsMax; the ones with the lowest numbers are forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/mutex.h"

namespace cairn {

inline constexpr std::int64_t kKnownConversationsMax = 10000;

class KnownConversations {
 public:
  void Note(std::int64_t conversation_id, const std::string& uid) {
    const MutexLock lock(mutex_);
    uids_[conversation_id] = uid;
    if (static_cast<std::int64_t>(uids_.size()) > kKnownConversationsMax) {
      uids_.erase(uids_.begin());
    }
  }
  // Empty: nothing is known, the number alone has to do.
  std::string UidOf(std::int64_t conversation_id) const {
    const MutexLock lock(mutex_);
    const auto found = uids_.find(conversation_id);
    return found == uids_.end() ? "" : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::int64_t, std::string> uids_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
