#include "compute-node/session/forward_scheduler.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {

ForwardScheduler::ForwardScheduler(Model& model, std::int64_t chunk_tokens_max, JoinTime join_time,
                                   Now now)
    : model_(model),
      step_tokens_max_(std::min(chunk_tokens_max, kStepTokensMax)),
      scratch_(model.config(), chunk_tokens_max),
      join_time_(std::move(join_time)),
      now_(std::move(now)) {}

ForwardScheduler::Clock::duration ForwardScheduler::DefaultJoinTime(Clock::duration step_time) {
  return std::min<Clock::duration>(step_time / 4, kJoinTimeMax);
}

void ForwardScheduler::Member::Leave() {
  const MutexLock lock(scheduler_.mutex_);
  scheduler_.ExpectNoMore(*this);
}

void ForwardScheduler::Expect(Member& member) {
  member.expected_ = true;
  expected_.push_back(&member);
}

void ForwardScheduler::ExpectNoMore(Member& member) {
  if (!member.expected_) return;
  member.expected_ = false;
  std::erase(expected_, &member);
  if (expected_.empty()) changed_.NotifyAll();
}

std::int64_t ForwardScheduler::expected_turn_count() const {
  const MutexLock lock(mutex_);
  return std::ssize(expected_);
}

std::int64_t ForwardScheduler::waiting_step_count() const {
  const MutexLock lock(mutex_);
  return std::ssize(steps_);
}

absl::Status ForwardScheduler::Run(Member& member, SequencePass& pass, const StopSignal& stop) {
  Request request{&pass, &member, now_()};
  const MutexLock lock(mutex_);
  ExpectNoMore(member);
  if (std::ssize(pass.tokens) > kStepTokensMax) {
    CAIRN_RETURN_IF_ERROR(RunChunk(request, stop));
  } else {
    RunStep(request);
  }
  return pass.status;
}

void ForwardScheduler::RunStep(Request& request) {
  steps_.push_back(&request);
  while (!request.done) {
    if (computing_ || !chunks_.empty()) {
      changed_.Wait(mutex_);
    } else if (const Clock::time_point due = StepDue(); now_() < due) {
      changed_.WaitUntil(mutex_, due);
    } else {
      computing_ = true;
      ComputeSteps();
      computing_ = false;
      changed_.NotifyAll();
    }
  }
}

absl::Status ForwardScheduler::RunChunk(Request& request, const StopSignal& stop) {
  chunks_.push_back(&request);
  absl::Status stopped;
  while (computing_ || chunks_.front() != &request) {
    stopped = stop.Check();
    if (!stopped.ok()) break;
    changed_.WaitUntil(mutex_, Clock::now() + kStopCheckInterval);
  }
  if (stopped.ok()) {
    computing_ = true;
    mutex_.Unlock();
    SequencePass* const passes[] = {request.pass};
    model_.Forward(passes, [this] { ComputeStepsBetween(); });
    mutex_.Lock();
    computing_ = false;
  }
  chunks_.erase(std::find(chunks_.begin(), chunks_.end(), &request));
  changed_.NotifyAll();
  return stopped;
}

void ForwardScheduler::ComputeStepsBetween() {
  const MutexLock lock(mutex_);
  if (steps_.empty()) return;
  const Clock::time_point now = now_();
  if (now < StepDue() || now - step_end_ < step_time_) return;
  ComputeSteps();
  changed_.NotifyAll();
}

ForwardScheduler::Clock::time_point ForwardScheduler::StepDue() const {
  if (expected_.empty() || std::ssize(steps_) >= kStepSequencesMax) {
    return Clock::time_point::min();
  }
  // What waited during the last step also waits for those who had a part in it: two groups would
  // otherwise alternate for ever.
  return std::max(steps_.front()->since, step_end_) + join_time_(step_time_);
}

std::vector<ForwardScheduler::Request*> ForwardScheduler::TakeSteps() {
  std::vector<Request*> taken;
  std::int64_t token_count = 0;
  while (!steps_.empty() && std::ssize(taken) < kStepSequencesMax) {
    token_count += std::ssize(steps_.front()->pass->tokens);
    if (!taken.empty() && token_count > step_tokens_max_) break;
    taken.push_back(steps_.front());
    steps_.pop_front();
  }
  return taken;
}

void ForwardScheduler::ComputeSteps() {
  const std::vector<Request*> requests = TakeSteps();
  // They were waited for; from now on they do not hold up the others until they come back.
  for (Member* late : std::exchange(expected_, {})) late->expected_ = false;
  std::vector<SequencePass*> passes;
  passes.reserve(requests.size());
  for (const Request* request : requests) passes.push_back(request->pass);
  mutex_.Unlock();
  const Clock::time_point start = now_();
  model_.Forward(passes, nullptr);
  const Clock::time_point end = now_();
  mutex_.Lock();
  step_time_ = end - start;
  step_end_ = end;
  for (Request* request : requests) {
    request->done = true;
    Expect(*request->member);
  }
}

}  // namespace cairn::compute
