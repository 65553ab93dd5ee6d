#include "compute-node/service/damaged_conversations.h"

#include <algorithm>

namespace cairn::compute {

void DamagedConversations::Note(const SessionRef& conversation) {
  const MutexLock lock(mutex_);
  std::erase(noted_, conversation);
  noted_.push_back(conversation);
  if (noted_.size() > kDamagedConversationsMax) noted_.pop_front();
}

bool DamagedConversations::Has(const SessionRef& conversation) const {
  const MutexLock lock(mutex_);
  return std::find(noted_.begin(), noted_.end(), conversation) != noted_.end();
}

void DamagedConversations::Forget(const SessionRef& conversation) {
  const MutexLock lock(mutex_);
  std::erase(noted_, conversation);
}

}  // namespace cairn::compute
