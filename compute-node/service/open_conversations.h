// OpenConversations are the conversations that somebody of this process has open: attaching to one
// twice would end the older attachment.
//
// Threading:  safe from any thread.
#pragma once

#include <set>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

class OpenConversations {
 public:
  // Waits until nobody has it, and takes it; or answers what `stop` says. Ids that do not exist are
  // fine.
  absl::Status Take(SessionId id, const StopSignal& stop);
  // False if somebody has it.
  bool TryTake(SessionId id);
  void Give(SessionId id);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::set<SessionId> taken_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
