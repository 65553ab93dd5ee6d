// KvNode and KvSession: all that the compute node knows of the KV node. One implementation speaks
// gRPC over a Unix socket (grpc_kv_node.h), one calls an engine in this process
// (in_process_kv_node.h); the code above does not know which it has.
//
// Threading:  KvNode is safe from any thread. A KvSession belongs to one thread at a time; replies
//             arrive on threads of its own, which wake the futures.
// Stop:       a KV node that is told to stop says so and waits a while: see wants_checkpoint.
// Loss:       when the KV node goes away, a session reconnects with back-off for at most
//             `reconnect_time_max`, resumes its epoch, sends what no checkpoint covers again and
//             repeats the reads that are unanswered: callers see a delay, nothing else. With
//             ReplayMode::kNothing (prefill) nothing is kept, so the loss shows: every call answers
//             ABORTED until Reattach, and the caller computes again from the checkpoint.
// Errors:     ABORTED lost, and nothing kept (see above), or another owner opened the session;
//             UNAVAILABLE the KV node did not come back in time; FAILED_PRECONDITION it came back
//             with another store, or the SessionRef's uid is not the session's; DATA_LOSS with an
//             older copy of its store; others as in proto/cairn/kv/v1/kv.proto. Nothing is written
//             to a store that is not the right one. New sessions are made in the one that is there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/fetch_clock.h"

namespace cairn::compute {

enum class ReplayMode {
  kOperations,  // keep every changing operation until a checkpoint covers it
  kNothing,     // keep nothing: the caller can compute again from the checkpoint
};

struct KvClientOptions {
  // How long to try to reach a lost KV node before an operation fails.
  std::chrono::milliseconds reconnect_time_max{30000};
  // First and largest wait between two tries.
  std::chrono::milliseconds backoff_min{10};
  std::chrono::milliseconds backoff_max{500};
  // The replay buffer's hard limit: Send answers RESOURCE_EXHAUSTED beyond it. Callers checkpoint
  // well before.
  std::int64_t replay_bytes_max = std::int64_t{64} << 20;
  // Whether fetched entries are read where the KV node has them, in shared memory; otherwise they
  // come through the socket.
  bool use_arena = true;
  // Whether callers take a checkpoint when a session wants one: then a KV node that is to stop
  // waits for that.
  bool checkpoints_at_stop = false;
  // Of the thread that takes a session's answers; 0: none. Where the system does not allow it the
  // thread runs as usual.
  int realtime_priority = 0;
};

// Why a wait should end now, or OK. Asked on the waiting thread; must not call the session.
using Interrupt = std::function<absl::Status()>;

inline constexpr std::chrono::milliseconds kInterruptCheckInterval{20};

class KvSession {
 public:
  virtual ~KvSession() = default;  // detaches; what no checkpoint covers is lost

  // Asked every kInterruptCheckInterval while StartRead, WaitForCheckpoint or Reattach waits for
  // the KV node: an error ends the wait and is its answer; the same call may be made again.
  // nullptr: wait as long as it takes.
  virtual void SetInterrupt(Interrupt interrupt) = 0;

  // As of the last Open, Reattach or resume.
  virtual const Attachment& attachment() const = 0;

  // Sends a changing operation; numbers it. Returns when it is queued; waits while the KV node has
  // no room. An error of the operation itself shows at the next call of any method, and stays; how
  // a checkpoint ends shows in WaitForCheckpoint. REQUIRES of one: none is in progress.
  virtual absl::Status Send(ChangingOperation operation) = 0;

  // Asks; the answer sees all that was sent before. At most kFetchesInFlightMax reads may be
  // unanswered.
  virtual std::future<absl::StatusOr<ReadReply>> StartRead(ReadOperation operation) = 0;

  // Of its fetches, over all attachments. Who waits for one says so here. It lives as long as the
  // session.
  virtual FetchClock& fetch_clock() = 0;

  // Gives back the memory of replies that were dropped. The next call that sends something does so
  // too; this is for a caller that may not send anything for long.
  virtual void ReturnLeases() = 0;

  // Whether a checkpoint was sent whose end is not known.
  virtual bool checkpoint_in_progress() const = 0;
  // Waits until the checkpoint in progress (if any) is durable.
  virtual absl::StatusOr<Checkpointed> WaitForCheckpoint() = 0;

  // Whether the KV node is about to stop and would lose what no checkpoint covers: take one now,
  // and send nothing until it is durable. The session then lets go of the KV node, and waits for
  // the next one as after any loss. False wherever nobody stops.
  virtual bool wants_checkpoint() const { return false; }
  // Waits while the KV node is away; at once otherwise. Interrupted as StartRead is.
  virtual absl::Status AwaitNode() { return absl::OkStatus(); }

  virtual void SetReplayMode(ReplayMode mode) = 0;
  // Bytes that the replay buffer holds.
  virtual std::int64_t replay_bytes() const = 0;
  // Of operations that no checkpoint covers, and that would be lost with the process: when they are
  // many, one is due.
  virtual std::int64_t uncovered_bytes() const { return replay_bytes(); }
  // After ABORTED in ReplayMode::kNothing: reconnects, resumes; the session is at
  // attachment().token_count again.
  virtual absl::Status Reattach() = 0;
  // Times that the connection was lost and resumed.
  virtual std::int32_t reconnect_count() const = 0;
};

class KvNode {
 public:
  virtual ~KvNode() = default;

  // Makes the new session's uid, if the request has none.
  virtual absl::StatusOr<SessionRef> Create(const CreateSession& request) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvSession>> Open(const SessionRef& session) = 0;
  virtual absl::Status Delete(const SessionRef& session) = 0;
  // kFlashUse, here and below: with own_flash_bytes and shared_flash_bytes, which takes longer in
  // large stores. NOT_FOUND if there is none; FAILED_PRECONDITION if another one has its number.
  virtual absl::StatusOr<SessionInfo> Get(const SessionRef& session, ListDetail detail) = 0;
  virtual absl::StatusOr<std::vector<SessionInfo>> List(ListDetail detail) = 0;
  virtual absl::StatusOr<SealedSegment> Seal(const SessionRef& session) = 0;
  // May be asked again, whether or not it was done. Nobody has either of them open.
  virtual absl::Status Supersede(const Supersession& request) = 0;
  virtual absl::StatusOr<KvStats> Stats() = 0;
  // This process is about to end: what waits for the KV node to come back, or begins to, waits for
  // at most `time_max` from now on.
  virtual void StopWaiting(std::chrono::milliseconds /*time_max*/) {}
  // Whether it serves now: one attempt, which the other calls do not wait for.
  virtual absl::Status Probe(std::chrono::milliseconds /*time_max*/) { return absl::OkStatus(); }
  // Largest part in bytes: a cluster that is to be one read must fit.
  virtual std::int64_t part_bytes_max() const = 0;
};

// A read of type Reply, waited for. INTERNAL if the KV node answers with another type.
template <typename Reply>
absl::StatusOr<Reply> Wait(std::future<absl::StatusOr<ReadReply>> answer) {
  absl::StatusOr<ReadReply> reply = answer.get();
  if (!reply.ok()) return reply.status();
  if (!std::holds_alternative<Reply>(*reply))
    return Internal("the KV node answered with another type");
  return std::get<Reply>(std::move(*reply));
}

}  // namespace cairn::compute
