#include "compute-node/session/live_conversations.h"

#include <utility>

namespace cairn::compute {

std::vector<LiveSnapshot> LiveConversations::List() const {
  const MutexLock lock(mutex_);
  return {all_.begin(), all_.end()};
}

LiveConversation::LiveConversation(LiveConversations& registry, SessionRef conversation,
                                   std::string label)
    : registry_(registry) {
  LiveSnapshot first;
  first.conversation = std::move(conversation);
  first.label = std::move(label);
  const MutexLock lock(registry_.mutex_);
  said_ = registry_.all_.insert(registry_.all_.end(), std::move(first));
}

LiveConversation::~LiveConversation() {
  const MutexLock lock(registry_.mutex_);
  registry_.all_.erase(said_);
}

void LiveConversation::SetPhase(LivePhase phase, std::int64_t phase_start,
                                std::int64_t phase_token_count) {
  Update([&](LiveSnapshot& now) {
    now.phase = phase;
    now.phase_start = phase_start;
    now.phase_token_count = phase_token_count;
  });
}

}  // namespace cairn::compute
