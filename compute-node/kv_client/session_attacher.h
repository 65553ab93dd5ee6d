// SessionAttacher attaches to one session as one owner, again and again: a SessionOwner's attempts
// over a NodeLink.
//
// Threading:  one thread at a time; Cancel is for any thread.
// Blocking:   Attach waits for the KV node: at most kConnectTimeMax and kCallTimeMax, for a resume
//             kResumeTimeMax.
// Errors:     of Attach: as SessionOwner says; others as in proto/cairn/kv/v1/kv.proto.
#pragma once

#include <chrono>
#include <memory>

#include "common/base/mutex.h"
#include "common/base/random_bytes.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/channel_call.h"
#include "compute-node/kv_client/node_link.h"
#include "compute-node/kv_client/session_owner.h"

namespace cairn::compute {

// One attempt to resume: opening a large session reads its rows from flash. One that takes longer
// is answered by the next.
inline constexpr std::chrono::milliseconds kResumeTimeMax{10000};

class SessionAttacher {
 public:
  // A stream of a new epoch.
  struct Attached {
    Attachment attachment;
    std::shared_ptr<ChannelCall> call;
  };

  SessionAttacher(std::shared_ptr<NodeLink> link, SessionRef session)
      : link_(std::move(link)), owner_(std::move(session), RandomBytes(kUidBytes)) {}

  const std::shared_ptr<NodeLink>& link() const { return link_; }

  // One attempt. `again` says whether another one can help after it has failed. `acknowledged`: the
  // last operation that a checkpoint is known to cover.
  absl::StatusOr<Attached> Attach(OpSeq acknowledged, bool* again);
  // Ends the call that an Attach waits for, now and from now on.
  void Cancel();

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Attachment> Ask(const NodeConnection& connection,
                                 std::chrono::milliseconds time_max,
                                 StubMethod<Request, Response> method, const Request& request);
  // What Cancel ends; null: nothing.
  void SetWaiting(grpc::ClientContext* context);

  const std::shared_ptr<NodeLink> link_;
  SessionOwner owner_;
  Mutex mutex_;
  bool cancelled_ CAIRN_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* waiting_ CAIRN_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace cairn::compute
