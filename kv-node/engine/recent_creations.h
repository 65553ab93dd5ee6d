// RecentCreations knows the sessions that were created last, by their uids: a call that is repeated
// because its reply was lost finds the session that the first one made, or waits for it. Of one
// that failed it is not known whether it made a session.
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
  // Whether the session is to be created now; then End must follow. Else `done` is answered, now or
  // by the End of the call that creates it.
  bool Begin(const std::string& uid, const Callback<SessionRef>& done) {
    const auto [found, is_new] = creations_.try_emplace(uid);
    if (is_new) return true;
    if (found->second.id == SessionId()) {
      found->second.waiting.push_back(done);
    } else {
      done(SessionRef{found->second.id, uid});
    }
    return false;
  }

  // 0: of no session that is known.
  SessionId Find(const std::string& uid) const {
    const auto found = creations_.find(uid);
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
  bool HasFailed(const std::string& uid) const { return failed_.contains(uid); }

  void End(const std::string& uid, const absl::StatusOr<SessionRef>& result) {
    const auto found = creations_.find(uid);
    const std::vector<Callback<SessionRef>> waiting = std::move(found->second.waiting);
    if (result.ok()) {
      found->second = {result->id, {}};
      failed_.erase(uid);
      ForgetBehind(uid);
    } else {
      creations_.erase(found);
      NoteFailed(uid);
    }
    for (const Callback<SessionRef>& done : waiting) done(result);
  }

  // Of a session that is stored; from the oldest to the newest.
  void Note(const std::string& uid, SessionId id) {
    if (!creations_.try_emplace(uid, Creation{id, {}}).second) return;
    ForgetBehind(uid);
  }

 private:
  struct Creation {
    SessionId id;  // 0: it is under way
    std::vector<Callback<SessionRef>> waiting;
  };

  void NoteFailed(const std::string& uid) {
    if (!failed_.insert(uid).second) return;
    failed_order_.push_back(uid);
    if (std::ssize(failed_order_) <= kCreationsKnownMax) return;
    failed_.erase(failed_order_.front());
    failed_order_.pop_front();
  }

  void ForgetBehind(const std::string& newest) {
    order_.push_back(newest);
    if (std::ssize(order_) <= kCreationsKnownMax) return;
    creations_.erase(order_.front());
    order_.pop_front();
  }

  std::map<std::string, Creation> creations_;
  std::deque<std::string> order_;  // of those that have ended
  std::set<std::string> failed_;
  std::deque<std::string> failed_order_;  // also of some that did not fail again
};

}  // namespace cairn::kv
