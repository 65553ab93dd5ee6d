#include "compute-node/service/generate_job.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/heap.h"
#include "common/log/log.h"
#include "common/timeline/timeline.h"
#include "compute-node/service/turn.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

// How soon a client that vanished is noticed.
constexpr std::chrono::milliseconds kCancelCheckInterval{50};

// Of a turn that the daemon's end has ended.
std::string WhatIsKept(bool ephemeral, const Turn& turn, bool has_answer,
                       const absl::Status& status) {
  if (ephemeral) return "ask again when it is back";
  if (turn.lost_token_count() > 0) return Message(status);
  if (!turn.keeps_anything()) return "nothing was stored yet, so ask again when it is back";
  return has_answer ? "the conversation keeps what was generated"
                    : "the conversation keeps what was stored of the prompt";
}

}  // namespace

absl::StatusOr<std::shared_ptr<GenerateJob>> GenerateJob::Make(
    const v1::GenerateRequest& request, std::shared_ptr<Runtime> runtime, DaemonState& state,
    StopSignal::Clock::time_point deadline, ClientHistory history) {
  std::shared_ptr<GenerateJob> job(new GenerateJob(std::move(runtime), state, deadline));
  AskedTurn& asked = job->asked_;
  CAIRN_RETURN_IF_ERROR(GenerateRequestReader(*job->runtime_).Read(request, asked));
  if (history == ClientHistory::kSentAgain) {
    CAIRN_CHECK(asked.ephemeral);
    job->kept_ = job->runtime_->kept.get();
    // Computed alike whether anything is kept or not, so that a prompt has one answer.
    asked.turn.prompt_end = job->kept_ != nullptr ? PromptEnd::kSealed : PromptEnd::kLastAlone;
    // What an earlier request's seed began is not random.
    asked.turn.keep_random_state = false;
  }
  job->live_.emplace(state.live_conversations(), asked.conversation,
                     job->kept_ != nullptr ? job->kept_->label() : asked.label);
  job->ready_ = Clock::now();
  return job;
}

GenerateJob::GenerateJob(std::shared_ptr<Runtime> runtime, DaemonState& state,
                         StopSignal::Clock::time_point deadline)
    : runtime_(std::move(runtime)),
      state_(state),
      start_(Clock::now()),
      stop_(std::make_shared<StopSignal>(deadline)),
      sink_(*runtime_->tokenizer, *stop_, start_) {}

void GenerateJob::Run() {
  sink_.NoteBegun(Clock::now() - ready_);
  const bool ephemeral = asked_.ephemeral;
  Turn turn(*runtime_, state_, std::move(asked_), kept_, sink_, *live_, *stop_);
  absl::Status status;
  {
    const TimelineSpan span(TimelineKind::kTurn, "generation");
    status = turn.Run();
  }
  live_.reset();
  FlushTimeline();
  if (absl::Status intact = runtime_->model->CheckIntact(); !intact.ok()) state_.Fail(intact);
  LogInfo("generation session={} prompt_tokens={} status={} time_ms={}", turn.conversation(),
          turn.prompt_token_count(), ToStd(absl::StatusCodeToString(status.code())),
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_).count());
  if (status.code() == absl::StatusCode::kCancelled && !sink_.slow_client().ok()) {
    status = ResourceExhausted("{}, so the generation was stopped; {}",
                               Message(sink_.slow_client()), Message(status));
  }
  if (status.code() == absl::StatusCode::kCancelled &&
      state_.phase() == DaemonState::Phase::kStopping) {
    status = Unavailable("cairn-compute-node is stopping: {}",
                         WhatIsKept(ephemeral, turn, sink_.shown_token_count() > 0, status));
  }
  sink_.queue().Close(std::move(status));
  if (turn.memory_peak_bytes() >= kReturnedBytesMin) ReturnFreedMemory();
}

std::optional<v1::GenerateEvent> NextEvent(GenerateJob& job, const std::function<bool()>& connected,
                                           Clock::time_point until) {
  while (!job.events().done()) {
    std::optional<v1::GenerateEvent> event = job.events().Pop(kCancelCheckInterval);
    if (!connected()) job.stop()->Cancel();
    if (event.has_value()) return event;
    if (Clock::now() >= until) break;
  }
  return std::nullopt;
}

}  // namespace cairn::compute
