#include "compute-node/session/forward_scheduler.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

// A sequence with its cache in memory, that a test may hold up within its first layer, and that
// notes which thread computes it.
class TestTurn : public KvAttention {
 public:
  TestTurn(ForwardScheduler& scheduler, std::vector<std::int32_t> tokens)
      : member(scheduler),
        scheduler_(scheduler),
        tokens_(std::move(tokens)),
        cache_(scheduler.model().config(), KvFormat::kF16, 4096, scheduler.model().pool()) {}

  absl::Status Attend(const AttentionBatch& batch) override {
    if (batch.layer == 0) {
      computed_by = std::this_thread::get_id();
      if (in_first_layer) in_first_layer();
    }
    return cache_.Attend(batch);
  }

  // Its next `count` tokens; the logits behind them are in `logits`.
  absl::Status Run(std::int64_t count, const StopSignal& stop = StopSignal()) {
    const std::int64_t position = cache_.token_count();
    logits.resize(static_cast<std::size_t>(scheduler_.model().config().vocab_size));
    SequencePass pass{std::span(tokens_).subspan(static_cast<std::size_t>(position),
                                                 static_cast<std::size_t>(count)),
                      position,
                      this,
                      {logits, {}},
                      stop.flag(),
                      absl::OkStatus()};
    return scheduler_.Run(member, pass, stop);
  }

  ForwardScheduler& scheduler() { return scheduler_; }

  ForwardScheduler::Member member;
  std::function<void()> in_first_layer;
  std::thread::id computed_by;
  std::vector<float> logits;

 private:
  ForwardScheduler& scheduler_;
  const std::vector<std::int32_t> tokens_;
  DenseAttention cache_;
};

class ForwardSchedulerTest : public ConversationFixture {
 protected:
  std::unique_ptr<TestTurn> NewTurn(const std::vector<std::int32_t>& tokens) {
    return std::make_unique<TestTurn>(scheduler, tokens);
  }
  std::unique_ptr<TestTurn> NewTurn(ForwardScheduler& other) {
    return std::make_unique<TestTurn>(other, Prompt(10));
  }
  // Begins a pass of `count` tokens that is held up until `waiting` steps wait behind it; returns
  // when it is being computed.
  std::future<absl::Status> Hold(TestTurn& turn, std::int64_t count, std::int64_t waiting) {
    auto began = std::make_shared<std::promise<void>>();
    turn.in_first_layer = [&scheduler = turn.scheduler(), began, waiting] {
      began->set_value();
      while (scheduler.waiting_step_count() < waiting) std::this_thread::yield();
    };
    auto result = std::async(std::launch::async, [&turn, count] { return turn.Run(count); });
    began->get_future().wait();
    return result;
  }
  // More steps at once than are computed together, some of them short prompts.
  void RunManySteps(ForwardScheduler& other) {
    const auto holder = NewTurn(other);
    constexpr std::int64_t kTurns = kStepSequencesMax + 4;
    auto held = Hold(*holder, 1, kTurns);
    std::vector<std::unique_ptr<TestTurn>> turns;
    std::vector<std::future<absl::Status>> results;
    for (std::int64_t i = 0; i < kTurns; ++i) {
      const std::int64_t count = i % 3 == 0 ? 60 : 1;
      turns.push_back(std::make_unique<TestTurn>(other, Prompt(60)));
      results.push_back(std::async(
          std::launch::async, [turn = turns.back().get(), count] { return turn->Run(count); }));
    }
    EXPECT_TRUE(held.get().ok());
    for (std::future<absl::Status>& result : results) EXPECT_TRUE(result.get().ok());
  }
};

TEST_F(ForwardSchedulerTest, TurnsAtOnceGetTheBitsThatTheyGetAlone) {
  constexpr int kTurns = 6;
  constexpr std::int64_t kSteps = 30;
  std::vector<std::int64_t> prompt_counts;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < kTurns; ++i) {
    prompt_counts.push_back(i % 2 == 0 ? 20 + i : 200 + 30 * i);
    tokens.push_back(Prompt(prompt_counts.back() + kSteps));
    const std::unique_ptr<TestTurn> alone = NewTurn(tokens.back());
    ASSERT_TRUE(alone->Run(std::ssize(tokens.back())).ok());
    expected.push_back(alone->logits);
  }
  std::vector<std::future<std::vector<float>>> results;
  for (std::size_t i = 0; i < kTurns; ++i) {
    results.push_back(std::async(std::launch::async, [&, i] {
      const std::unique_ptr<TestTurn> turn = NewTurn(tokens[i]);
      EXPECT_TRUE(turn->Run(prompt_counts[i]).ok());
      for (std::int64_t step = 0; step < kSteps; ++step) EXPECT_TRUE(turn->Run(1).ok());
      return turn->logits;
    }));
  }
  for (std::size_t i = 0; i < kTurns; ++i) EXPECT_EQ(results[i].get(), expected[i]) << i;
}

TEST_F(ForwardSchedulerTest, StepsThatWaitAreComputedTogether) {
  const auto first = NewTurn(Prompt(10));
  const auto second = NewTurn(Prompt(10));
  const auto third = NewTurn(Prompt(10));
  auto one = Hold(*first, 5, 2);
  auto two = std::async(std::launch::async, [&] { return second->Run(1); });
  auto three = std::async(std::launch::async, [&] { return third->Run(7); });
  EXPECT_TRUE(one.get().ok());
  EXPECT_TRUE(two.get().ok());
  EXPECT_TRUE(three.get().ok());
  EXPECT_EQ(second->computed_by, third->computed_by);
  EXPECT_NE(first->computed_by, second->computed_by);
}

TEST_F(ForwardSchedulerTest, AStepWaitsForThoseOfTheLastOneAndNotForOthers) {
  const auto gone = NewTurn(Prompt(10));
  const auto turn = NewTurn(Prompt(10));
  // Would never come back if it were waited for.
  ASSERT_TRUE(gone->Run(1).ok());
  EXPECT_TRUE(turn->Run(1).ok());
  gone->member.Leave();
  EXPECT_TRUE(turn->Run(1).ok());
  EXPECT_EQ(turn->computed_by, std::this_thread::get_id());
}

TEST_F(ForwardSchedulerTest, ATurnThatIsLateIsWaitedForOnce) {
  const auto late = NewTurn(Prompt(10));
  const auto turn = NewTurn(Prompt(10));
  ASSERT_TRUE(late->Run(1).ok());
  EXPECT_EQ(scheduler.expected_turn_count(), 1);
  EXPECT_TRUE(turn->Run(1).ok());
  EXPECT_EQ(scheduler.expected_turn_count(), 1);
  turn->member.Leave();
  EXPECT_EQ(scheduler.expected_turn_count(), 0);
  EXPECT_TRUE(late->Run(1).ok());
  EXPECT_EQ(scheduler.expected_turn_count(), 1);
}

// One turn computes while the other's step waits. Then the one that waited is due since long, but
// waits for the other's next token all the same: from here on they step together.
TEST_F(ForwardSchedulerTest, TwoGroupsThatAlternateBecomeOne) {
  constexpr std::chrono::hours kJoin{1};
  std::atomic<std::chrono::hours> passed{std::chrono::hours(0)};
  ForwardScheduler joining(
      model, 512, [&](auto) { return kJoin; },
      [&] { return ForwardScheduler::Clock::now() + passed.load(); });
  const auto first = NewTurn(joining);
  const auto second = NewTurn(joining);
  std::promise<void> began;
  first->in_first_layer = [&] {
    began.set_value();
    while (joining.waiting_step_count() == 0) std::this_thread::yield();
    passed = 2 * kJoin;
  };
  auto one = std::async(std::launch::async, [&] {
    EXPECT_TRUE(first->Run(1).ok());
    first->in_first_layer = nullptr;
    return first->Run(1);
  });
  began.get_future().wait();
  EXPECT_TRUE(second->Run(1).ok());
  EXPECT_TRUE(one.get().ok());
  EXPECT_EQ(first->computed_by, second->computed_by);
  EXPECT_EQ(joining.expected_turn_count(), 2);
}

TEST_F(ForwardSchedulerTest, AGroupThatDoesNotComeBackInTimeStaysApart) {
  ForwardScheduler hasty(model, 512, [](auto) { return ForwardScheduler::Clock::duration(0); });
  const auto first = NewTurn(hasty);
  const auto second = NewTurn(hasty);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(first->Run(1).ok());
    EXPECT_TRUE(second->Run(1).ok());
    EXPECT_EQ(hasty.expected_turn_count(), 1);
  }
}

TEST_F(ForwardSchedulerTest, LateTurnsHoldUpAStepForAQuarterOfItAtMost) {
  using std::chrono::milliseconds;
  EXPECT_EQ(ForwardScheduler::DefaultJoinTime(milliseconds(0)), milliseconds(0));
  EXPECT_EQ(ForwardScheduler::DefaultJoinTime(milliseconds(8)), milliseconds(2));
  EXPECT_EQ(ForwardScheduler::DefaultJoinTime(milliseconds(400)), kJoinTimeMax);
}

TEST_F(ForwardSchedulerTest, StepsAreComputedBetweenThePiecesOfAChunk) {
  const auto chunk = NewTurn(Prompt(400));
  const auto step = NewTurn(Prompt(10));
  auto prompt = Hold(*chunk, 400, 1);
  EXPECT_TRUE(step->Run(1).ok());
  EXPECT_TRUE(prompt.get().ok());
  EXPECT_EQ(step->computed_by, chunk->computed_by);
}

TEST_F(ForwardSchedulerTest, AChunkThatWaitsForItsTurnCanBeStopped) {
  const auto running = NewTurn(Prompt(300));
  const auto waiting = NewTurn(Prompt(300));
  const auto next = NewTurn(Prompt(300));
  std::promise<void> began;
  std::promise<void> release;
  running->in_first_layer = [&] {
    began.set_value();
    release.get_future().wait();
  };
  auto first = std::async(std::launch::async, [&] { return running->Run(300); });
  began.get_future().wait();
  StopSignal stop;
  stop.Cancel();
  EXPECT_EQ(waiting->Run(300, stop).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(waiting->Run(300, StopSignal(StopSignal::Clock::now())).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waiting->computed_by, std::thread::id());
  auto last = std::async(std::launch::async, [&] { return next->Run(300); });
  release.set_value();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(last.get().ok());
}

TEST_F(ForwardSchedulerTest, MoreStepsThanOneTakesAreComputedInTurn) { RunManySteps(scheduler); }

TEST_F(ForwardSchedulerTest, StepsTogetherAreNoMoreThanAPassOfTheModel) {
  constexpr std::int64_t kPassTokens = 64;
  ForwardScheduler small(TestModel("narrow-llama", kPassTokens), kPassTokens);
  RunManySteps(small);
}

}  // namespace
}  // namespace cairn::compute
