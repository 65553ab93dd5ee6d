#include "compute-node/service/event_sink.h"

#include <utility>

#include "compute-node/service/generate_events.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

// More often a person would not see it.
constexpr std::chrono::milliseconds kProgressInterval{50};

}  // namespace

void EventSink::SendStarted(const Conversation& conversation, std::int64_t prompt_token_count) {
  if (std::exchange(started_, true)) return;
  Send(StartedEvent(conversation, prompt_token_count));
}

bool EventSink::IsTimeForProgress(bool last) {
  const Clock::time_point now = Clock::now();
  if (!last && now < next_progress_) return false;
  next_progress_ = now + kProgressInterval;
  return true;
}

void EventSink::SendPrefilled(std::int64_t done_count, std::int64_t prompt_token_count) {
  if (!IsTimeForProgress(done_count == prompt_token_count)) return;
  Send(PrefillEvent(done_count, prompt_token_count));
}

void EventSink::SendRecomputing(std::int64_t done_count, std::int64_t token_count,
                                const std::string& reason) {
  const bool told =
      done_count == 0 ? !reason.empty() : IsTimeForProgress(done_count == token_count);
  if (told) Send(RecomputingEvent(done_count, token_count, reason));
}

void EventSink::SendToken(std::int32_t id, std::string_view text, const LogProbabilities* likely) {
  ++shown_token_count_;
  if (first_token_time_.count() == 0) first_token_time_ = Clock::now() - start_;
  Send(TokenEvent(tokenizer_, id, text, likely));
}

void EventSink::SendFinished(v1::Finished finished) {
  *finished.mutable_queue_time() = ToDuration(queue_time_);
  *finished.mutable_first_token_time() = ToDuration(first_token_time_);
  v1::GenerateEvent event;
  *event.mutable_finished() = std::move(finished);
  Send(std::move(event));
}

void EventSink::Send(v1::GenerateEvent event) {
  const absl::Status pushed = queue_.Push(std::move(event), stop_);
  if (pushed.ok() || !stop_.Check().ok()) return;
  slow_client_ = pushed;
  stop_.Cancel();
}

}  // namespace cairn::compute
