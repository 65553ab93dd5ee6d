// EventSink makes the events of one Generate stream as its turn goes on, and knows what the client
// has been shown by now.
//
// Threading:  the turn's thread; queue() is read by the call's thread too.
// Blocking:   while the client does not take events; one that takes none for too long stops the
//             turn.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "compute-node/service/event_queue.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/generation.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

class EventSink {
 public:
  // `start`: when the call came. Both outlive it.
  EventSink(const Tokenizer& tokenizer, StopSignal& stop,
            std::chrono::steady_clock::time_point start)
      : tokenizer_(tokenizer), stop_(stop), start_(start) {}

  EventQueue& queue() { return queue_; }
  const EventQueue& queue() const { return queue_; }

  // The turn begins behind what the conversation holds. Told once, also if what is stored turns out
  // to be damaged and all is computed again.
  void SendStarted(const Conversation& conversation, std::int64_t prompt_token_count);
  // So many tokens of the prompt are computed.
  void SendPrefilled(std::int64_t done_count, std::int64_t prompt_token_count);
  // The same of a conversation that is computed again; `reason` is told with the first of them.
  void SendRecomputing(std::int64_t done_count, std::int64_t token_count,
                       const std::string& reason);
  // `likely` is null where no log probabilities were asked for.
  void SendToken(std::int32_t id, std::string_view text, const LogProbabilities* likely);
  // Adds to `finished` what the turn and its conversation know, how long the call waited, and how
  // long for its first token.
  void SendFinished(const Conversation& conversation, const TurnResult& result,
                    v1::Finished finished);

  // The turn's thread has the call.
  void NoteBegun(std::chrono::nanoseconds queue_time) { queue_time_ = queue_time; }
  bool started() const { return started_; }
  std::int64_t shown_token_count() const { return shown_token_count_; }
  // A client that did not read, which ended the turn; else OK.
  const absl::Status& slow_client() const { return slow_client_; }

 private:
  void Send(v1::GenerateEvent event);
  bool IsTimeForProgress(bool last);

  const Tokenizer& tokenizer_;
  StopSignal& stop_;
  const std::chrono::steady_clock::time_point start_;
  EventQueue queue_;
  bool started_ = false;
  std::int64_t shown_token_count_ = 0;
  std::chrono::nanoseconds queue_time_{0};
  std::chrono::nanoseconds first_token_time_{0};
  std::chrono::steady_clock::time_point next_progress_;
  absl::Status slow_client_;
};

}  // namespace cairn::compute
