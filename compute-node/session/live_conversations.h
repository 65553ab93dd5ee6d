// LiveConversations are the conversations of a process that generate, or wait for their turn, each
// as it last said that it was: who asks gets copies and holds nobody up.
//
// A conversation's own thread says so between two passes, never within one, so that the numbers of
// a snapshot belong together: a pass that takes long, or waits for the KV node, is not seen.
//
// Threading:  LiveConversations is safe from any thread; a LiveConversation is one thread's at a
//             time.
// Ownership:  a LiveConversation borrows its registry.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/messages.h"
#include "compute-node/session/served_model.h"

namespace cairn::compute {

enum class LivePhase {
  kQueued,       // waits for its turn
  kOpening,      // reads what is stored
  kPrefilling,   // computes its prompt
  kDecoding,     // generates
  kRecomputing,  // is computed again from its tokens, for what is stored is damaged
};

struct LiveSnapshot {
  SessionRef conversation;  // id 0: a new one that is not made yet
  std::string label;        // of a new one; what an older one has only the KV node knows
  LivePhase phase = LivePhase::kQueued;
  // It computes nothing until the KV node has answered.
  bool waits_for_store = false;
  // Of the prompt, or of all that is computed again: how many tokens, and how many others the
  // conversation held before.
  std::int64_t phase_token_count = 0;
  std::int64_t phase_start = 0;

  // Of the conversation, from when it is open.
  ModelIdentity identity;
  std::string policy;
  std::int64_t token_count = 0;
  std::int64_t durable_token_count = 0;
  std::int64_t memory_bytes = 0;   // for its keys and values, in this process
  std::int64_t kv_read_bytes = 0;  // from flash, in this turn

  // Of phase_token_count.
  std::int64_t phase_done_count() const {
    return std::clamp<std::int64_t>(token_count - phase_start, 0, phase_token_count);
  }
};

class LiveConversations {
 public:
  // In the order in which they were asked for.
  std::vector<LiveSnapshot> List() const;

 private:
  friend class LiveConversation;
  mutable Mutex mutex_;
  std::list<LiveSnapshot> all_ CAIRN_GUARDED_BY(mutex_);
};

// One of them, for as long as this lives.
class LiveConversation {
 public:
  // Queued. See the snapshot.
  LiveConversation(LiveConversations& registry, SessionRef conversation, std::string label);
  ~LiveConversation();
  LiveConversation(const LiveConversation&) = delete;
  LiveConversation& operator=(const LiveConversation&) = delete;

  // `change` gets what is said, and makes it what is true now. It must be quick.
  template <typename Change>
  void Update(const Change& change) {
    const MutexLock lock(registry_.mutex_);
    change(*said_);
  }
  // What the conversation does from now on: see the snapshot.
  void SetPhase(LivePhase phase, std::int64_t phase_start = 0, std::int64_t phase_token_count = 0);

 private:
  LiveConversations& registry_;
  std::list<LiveSnapshot>::iterator said_;  // under the registry's mutex
};

}  // namespace cairn::compute
