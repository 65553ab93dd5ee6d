// RecentCreations knows the sessions that were created last, by app and uid: a call that is
// repeated because its reply was lost finds the session that the first one made, or waits for it.
// Of one that failed it is not known whether it made a session.
//
// Threading:  the engine thread.
// Limits:     kCreationsKnownMax sessions, and as many that failed; the oldest are forgotten.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/engine/engine.h"

namespace cairn::kv {

inline constexpr std::int64_t kCreationsKnownMax = 1024;

class RecentCreations {
 public:
  using Key = std::pair<AppId, std::string>;  // the session's app and uid

  // Whether the session is to be created now; then End must follow. Else `done` is answered, now or
  // by the End of the call that creates it.
  bool Begin(const Key& key, const Callback<SessionRef>& done) {
    const auto [found, is_new] = creations_.try_emplace(key);
    if (is_new) return true;
    if (found->second.id == SessionId()) {
      found->second.waiting.push_back(done);
    } else {
      done(SessionRef{found->second.id, key.second});
    }
    return false;
  }

  // 0: of no session that is known.
  SessionId Find(const Key& key) const {
    const auto found = creations_.find(key);
    return found == creations_.end() ? SessionId() : found->second.id;
  }

  // A repeated call makes another session.
  void Forget(SessionId id) {
    const auto found =
        std::find_if(creations_.begin(), creations_.end(),
                     [id](const auto& creation) { return creation.second.id == id; });
    if (found == creations_.end()) return;
    std::erase(order_, found->first);
    creations_.erase(found);
  }

  // Whether one of this uid failed, so that its session may be there all the same.
  bool HasFailed(const Key& key) const { return failed_.contains(key); }

  void End(const Key& key, const absl::StatusOr<SessionRef>& result) {
    const auto found = creations_.find(key);
    const std::vector<Callback<SessionRef>> waiting = std::move(found->second.waiting);
    if (result.ok()) {
      found->second = {result->id, {}};
      failed_.erase(key);
      ForgetBehind(key);
    } else {
      creations_.erase(found);
      NoteFailed(key);
    }
    for (const Callback<SessionRef>& done : waiting) done(result);
  }

  // Of a session that is stored; from the oldest to the newest.
  void Note(const Key& key, SessionId id) {
    if (!creations_.try_emplace(key, Creation{id, {}}).second) return;
    ForgetBehind(key);
  }

 private:
  struct Creation {
    SessionId id;  // 0: it is under way
    std::vector<Callback<SessionRef>> waiting;
  };

  void NoteFailed(const Key& key) {
    if (!failed_.insert(key).second) return;
    failed_order_.push_back(key);
    if (std::ssize(failed_order_) <= kCreationsKnownMax) return;
    failed_.erase(failed_order_.front());
    failed_order_.pop_front();
  }

  void ForgetBehind(const Key& newest) {
    order_.push_back(newest);
    if (std::ssize(order_) <= kCreationsKnownMax) return;
    creations_.erase(order_.front());
    order_.pop_front();
  }

  std::map<Key, Creation> creations_;
  std::deque<Key> order_;  // of those that have ended
  std::set<Key> failed_;
  std::deque<Key> failed_order_;  // also of some that did not fail again
};

}  // namespace cairn::kv
