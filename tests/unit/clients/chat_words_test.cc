// What is said about progress, and about turns that Ctrl-C ended.
#include <stdlib.h>

#include <gtest/gtest.h>

#include "clients/cairn/interrupted_turn.h"
#include "clients/cairn/progress_line.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What is told when so much is done after so many milliseconds, the last of these.
std::string PaceText(const std::vector<std::pair<std::int64_t, std::int64_t>>& samples,
                     std::int64_t total, std::string_view unit = "tokens") {
  ProgressPace pace;
  for (const auto& [done, time_ms] : samples) pace.Note(done, milliseconds(time_ms));
  return pace.Text(total, unit);
}

TEST(ProgressPaceTest, RateAndTimeLeftAreToldOnceTheyMeanSomething) {
  EXPECT_EQ(PaceText({{0, 0}}, 100), "0/100 tokens");
  EXPECT_EQ(PaceText({{0, 0}, {50, 900}}, 100), "50/100 tokens");
  EXPECT_EQ(PaceText({{0, 0}, {50, 5000}}, 100), "50/100 tokens, 10/s, 5 s left");
  EXPECT_EQ(PaceText({{0, 0}, {5, 2000}}, 100, "MiB"), "5/100 MiB, 2.5/s, 38 s left");
  // What was there at the start says nothing about the rate.
  EXPECT_EQ(PaceText({{40, 0}, {50, 2000}}, 100), "50/100 tokens, 5.0/s, 10 s left");
  EXPECT_EQ(PaceText({{40, 0}, {40, 2000}}, 100), "40/100 tokens");
  EXPECT_EQ(PaceText({{0, 0}, {100, 4000}}, 100), "100/100 tokens, 25/s");
}

TEST(ProgressPaceTest, WhatTakesLongerTheFartherItIsIsForeseen) {
  // n tokens take n / 1000 + n * n / 1e6 seconds.
  std::vector<std::pair<std::int64_t, std::int64_t>> samples;
  for (std::int64_t n = 0; n <= 4000; n += 10) samples.emplace_back(n, n + n * n / 1000);
  EXPECT_EQ(PaceText(samples, 20000), "4000/20000 tokens, 143/s, 6 min 40 s left");
  // What becomes faster, as behind a start, is not taken for an end that comes at once.
  EXPECT_EQ(PaceText({{0, 0}, {10, 10000}, {20, 11000}}, 40), "20/40 tokens, 10/s, 11 s left");
}

TEST(ProgressPaceTest, LongTimesAreInMinutesAndHours) {
  EXPECT_EQ(PaceText({{0, 0}, {10, 1000}}, 2010), "10/2010 tokens, 10/s, 3 min 20 s left");
  EXPECT_EQ(PaceText({{0, 0}, {1, 1000}}, 7501), "1/7501 tokens, 1.0/s, 2 h 5 min left");
}

TEST(InterruptedTurnTest, CommandNamesTheSocketWhereItIsNotTheDefault) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  ASSERT_EQ(::setenv("CAIRN_SOCKET", "/a/c.sock", 1), 0);
  EXPECT_EQ(GoOnCommand("chat", 7, "/a/c.sock"), "cairn chat --conversation 7");
  EXPECT_EQ(GoOnCommand("chat", 7, "/b/c.sock"), "cairn chat --conversation 7 --socket /b/c.sock");
  EXPECT_EQ(GoOnCommand("generate", 7, "/it's a/$c"),
            "cairn generate --conversation 7 --socket '/it'\\''s a/$c'");
  ASSERT_EQ(::unsetenv("CAIRN_SOCKET"), 0);  // NOLINT(concurrency-mt-unsafe): likewise
}

constexpr char kWhy[] =
    "a prompt is stored in pieces (prefill_chunk_tokens of cairn-compute-node), and none was "
    "complete";

TEST(InterruptedTurnTest, KeptIsWhatTheConversationHoldsMoreThanBefore) {
  TurnProgress turn{.conversation_id = 7, .prompt_count = 100, .done_count = 60};
  EXPECT_EQ(DescribeKept(turn, 48).text,
            "after 60 of 100 prompt tokens; conversation 7 keeps the first 48 of them");
  EXPECT_FALSE(DescribeKept(turn, 48).conversation_is_gone);
  turn.reused_count = 40;
  EXPECT_EQ(DescribeKept(turn, 48).text,
            "after 60 of 100 prompt tokens; conversation 7 keeps the first 8 of them");
  EXPECT_EQ(DescribeKept(turn, 40).text,
            std::string("after 60 of 100 prompt tokens; conversation 7 is as it was: ") + kWhy);
  EXPECT_FALSE(DescribeKept(turn, 40).conversation_is_gone);
  // A token may be stored of which the client was not told.
  EXPECT_EQ(DescribeKept(turn, 141).text,
            "after 60 of 100 prompt tokens; conversation 7 keeps the first 100 of them");
}

TEST(InterruptedTurnTest, OnlyTheRestOfAPromptIsToBeGivenAgain) {
  TurnProgress turn{.conversation_id = 7, .prompt_count = 100, .done_count = 60};
  EXPECT_EQ(HowToGoOn(DescribeKept(turn, 48), 7, "/b/c.sock"),
            "; go on with the rest of the prompt, without them, by cairn generate --conversation 7 "
            "--socket /b/c.sock; cairn sessions show 7 --socket /b/c.sock shows them");
  EXPECT_EQ(HowToGoOn(DescribeKept(turn, 100), 7, "/b/c.sock"),
            "; go on with cairn generate --conversation 7 --socket /b/c.sock");
  turn.has_text = true;
  EXPECT_EQ(HowToGoOn(DescribeKept(turn, 0), 7, "/b/c.sock"),
            "; go on with cairn generate --conversation 7 --socket /b/c.sock");
}

TEST(InterruptedTurnTest, ConversationThatHoldsNothingIsGone) {
  const TurnProgress turn{.conversation_id = 7, .prompt_count = 100, .done_count = 60};
  const KeptTurn kept = DescribeKept(turn, 0);
  EXPECT_TRUE(kept.conversation_is_gone);
  EXPECT_EQ(kept.text, std::string("after 60 of 100 prompt tokens; nothing is kept: ") + kWhy);
}

TEST(InterruptedTurnTest, AnswerIsInTheConversation) {
  const TurnProgress turn{
      .conversation_id = 7, .prompt_count = 100, .done_count = 100, .has_text = true};
  EXPECT_EQ(DescribeKept(turn, 0).text, "what was generated is in conversation 7");
}

}  // namespace
}  // namespace cairn::cli
