// GenerateJob is one call of Generate: checked on the call's thread, run on the queue's as a Turn,
// its events written by the call's thread again.
//
// Threading:  Make and the getters on the call's thread; Run once, on the queue's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"
#include "compute-node/service/event_sink.h"
#include "compute-node/service/generate_request.h"
#include "compute-node/service/runtime.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// What a client knows of conversations.
enum class ClientHistory {
  kHeld,       // it names one, and sends what is new
  kSentAgain,  // nothing: it sends the whole history each time
};

class GenerateJob {
 public:
  // Errors: those of GenerateRequestReader. With kSentAgain the conversation, which must be an
  // ephemeral one, is kept in the runtime's kept ones instead of deleted, if there are such, and
  // goes on from what is kept.
  static absl::StatusOr<std::shared_ptr<GenerateJob>> Make(
      const v1::GenerateRequest& request, std::shared_ptr<Runtime> runtime, DaemonState& state,
      StopSignal::Clock::time_point deadline, ClientHistory history = ClientHistory::kHeld);

  const std::shared_ptr<StopSignal>& stop() { return stop_; }
  EventQueue& events() { return sink_.queue(); }
  // Id 0: a new one.
  SessionId conversation() const { return asked_.conversation.id; }
  // Of messages that become a prompt only when the conversation is open.
  std::int64_t message_bytes() const { return asked_.message_bytes(); }
  // How it ended. REQUIRES: events().done().
  absl::Status status() const { return sink_.queue().end(); }

  void Run();

 private:
  GenerateJob(std::shared_ptr<Runtime> runtime, DaemonState& state,
              StopSignal::Clock::time_point deadline);

  const std::shared_ptr<Runtime> runtime_;
  DaemonState& state_;
  const std::chrono::steady_clock::time_point start_;
  const std::shared_ptr<StopSignal> stop_;
  EventSink sink_;
  AskedTurn asked_;
  PrefixStore* kept_ = nullptr;                  // null: nothing is kept
  std::optional<LiveConversation> live_;         // from when it is checked until it has run
  std::chrono::steady_clock::time_point ready_;  // to be submitted
};

// The next event of a job that was submitted; nullopt when it has ended, or at `until`. Asks
// `connected` from time to time: when it says no, cancels the job, whose last events come all the
// same.
// Threading: one thread for each job. Blocking: until there is one.
std::optional<v1::GenerateEvent> NextEvent(
    GenerateJob& job, const std::function<bool()>& connected,
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

}  // namespace cairn::compute
