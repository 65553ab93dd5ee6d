// SessionOwner is one owner's claim to a session: its attempts to attach, each with a higher number
// than the one before, so that one may be made again whether or not an attempt whose reply was lost
// took effect; and the store and the session that all of them are about.
//
// Threading:  not synchronised.
// Errors:     FAILED_PRECONDITION the KV node has another store now, or under this number another
//             session; ABORTED another owner attached in between; DATA_LOSS its store is an older
//             copy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::compute {

// FAILED_PRECONDITION unless the store that `node` has now is the one that holds the session.
// `expected` empty: any store will do.
absl::Status CheckStore(std::string_view node, const std::string& store_now,
                        const std::string& expected, SessionId session);

class SessionOwner {
 public:
  // `owner`: kUidBytes that nobody else has.
  SessionOwner(SessionRef session, std::string owner)
      : session_(std::move(session)), owner_(std::move(owner)) {}

  SessionId session_id() const { return session_.id; }
  // Before each attempt, with what `node` says of its store: OK unless the session is known to lie
  // in another one, because it was attached there, or, where its uid is not known, was asked for
  // there. A connection is one process's: what it said of its store holds for all that is asked
  // there.
  absl::Status MeetStore(std::string_view node, const std::string& store_now);
  // The next attempt: an open at first, later a resume, which says what checkpoints were
  // acknowledged.
  std::variant<OpenRequest, ResumeRequest> NextAttempt(OpSeq acknowledged);
  void OnAttached(const Attachment& attachment);
  // What the error of an attempt means to its owner.
  absl::Status Explain(const absl::Status& failed) const;

 private:
  SessionRef session_;
  const std::string owner_;
  std::int64_t attempt_count_ = 0;
  std::string store_met_;  // by the last attempt
  std::string store_id_;   // that holds the session; empty: not known yet
  Epoch epoch_;            // 0: no open was answered yet
};

}  // namespace cairn::compute
