#include "compute-node/service/open_conversations.h"

namespace cairn::compute {

absl::Status OpenConversations::Take(SessionId id, const StopSignal& stop) {
  const MutexLock lock(mutex_);
  while (!taken_.insert(id).second) {
    CAIRN_RETURN_IF_ERROR(stop.Check());
    changed_.WaitUntil(mutex_, StopSignal::Clock::now() + kStopCheckInterval);
  }
  return absl::OkStatus();
}

bool OpenConversations::TryTake(SessionId id) {
  const MutexLock lock(mutex_);
  return taken_.insert(id).second;
}

void OpenConversations::Give(SessionId id) {
  const MutexLock lock(mutex_);
  taken_.erase(id);
  changed_.NotifyAll();
}

}  // namespace cairn::compute
