// ForwardScheduler runs the forward passes of many conversations on one model. A conversation's
// thread asks for one pass at a time and waits for it; the scheduler decides which passes are
// computed together, and when.
//
// A pass of at most kStepTokensMax tokens is a step: the next token of a conversation that decodes,
// or a short prompt. Steps are computed together, up to kStepSequencesMax of them, of no more
// tokens than a step or a pass of the model may have: a turn joins at the next step and leaves
// behind its last one. A longer pass is a chunk of a prompt and is computed by itself; chunks of
// several prompts take turns, in the order in which they came.
//
// Policy:
// - A step starts when every turn that had a part in the last one is back with its next token, and
//   without the late ones after a quarter of the last step's time, at most kJoinTimeMax.
// - Between the pieces of a chunk the waiting steps are computed; the chunk then gets at least as
//   much time as they took. So a token waits at most for one piece of a chunk and for the last step
//   twice, and a prompt takes at most twice its time plus a piece, whatever else runs.
//
// Results do not depend on any of this (forward.h).
//
// Threading:  Run from any thread, at most one at a time for a Member. A pass is computed on the
//             thread of one of its sequences, so a KvAttention is called from other threads than
//             its own, one at a time; it must not wait for its own thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/session/attention/attention_scratch.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr int kStepSequencesMax = 16;
inline constexpr std::chrono::microseconds kJoinTimeMax{4000};

class ForwardScheduler {
 public:
  using Clock = std::chrono::steady_clock;
  // How long a step waits for late turns, from the time of the last one.
  using JoinTime = std::function<Clock::duration(Clock::duration step_time)>;
  // May run ahead of the real one, by which waits end.
  using Now = std::function<Clock::time_point()>;
  // A quarter of it, at most kJoinTimeMax.
  static Clock::duration DefaultJoinTime(Clock::duration step_time);

  // Borrows the model, which outlives it and is loaded for passes of `chunk_tokens_max` tokens.
  ForwardScheduler(Model& model, std::int64_t chunk_tokens_max,
                   JoinTime join_time = DefaultJoinTime, Now now = Clock::now);
  ~ForwardScheduler() = default;
  ForwardScheduler(const ForwardScheduler&) = delete;
  ForwardScheduler& operator=(const ForwardScheduler&) = delete;

  // One that asks for passes: a conversation.
  class Member {
   public:
    explicit Member(ForwardScheduler& scheduler) : scheduler_(scheduler) {}
    ~Member() { Leave(); }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Says that its next pass will not come soon, so that steps do not wait for it.
    void Leave();

   private:
    friend class ForwardScheduler;
    ForwardScheduler& scheduler_;
    bool expected_ = false;  // under the scheduler's mutex: it is one of expected_
  };

  // Computes `pass` and answers its status. CANCELLED or DEADLINE_EXCEEDED also when `stop` ends
  // the wait of a chunk for its turn.
  absl::Status Run(Member& member, SequencePass& pass, const StopSignal& stop);

  // Steps that wait to be computed.
  std::int64_t waiting_step_count() const;
  // Turns that the next step waits for.
  std::int64_t expected_turn_count() const;

  Model& model() { return model_; }
  PassScratch& scratch() { return scratch_; }

 private:
  struct Request {
    SequencePass* pass;
    Member* member;
    Clock::time_point since;
    bool done = false;
  };

  void RunStep(Request& request) CAIRN_REQUIRES(mutex_);
  absl::Status RunChunk(Request& request, const StopSignal& stop) CAIRN_REQUIRES(mutex_);
  // On a chunk's thread, between its pieces.
  void ComputeStepsBetween();
  // When the waiting steps are to be computed, all members being there or not.
  Clock::time_point StepDue() const CAIRN_REQUIRES(mutex_);
  void ComputeSteps() CAIRN_REQUIRES(mutex_);
  std::vector<Request*> TakeSteps() CAIRN_REQUIRES(mutex_);
  void Expect(Member& member) CAIRN_REQUIRES(mutex_);
  void ExpectNoMore(Member& member) CAIRN_REQUIRES(mutex_);

  Model& model_;
  const std::int64_t step_tokens_max_;  // of the steps computed together
  PassScratch scratch_;
  const JoinTime join_time_;
  const Now now_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool computing_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<Request*> steps_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Request*> chunks_
      CAIRN_GUARDED_BY(mutex_);  // the first one is being computed, or next
  // Had a part in the last step and have not come back.
  std::vector<Member*> expected_ CAIRN_GUARDED_BY(mutex_);
  Clock::duration step_time_ CAIRN_GUARDED_BY(mutex_){0};  // of the last one
  Clock::time_point step_end_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
