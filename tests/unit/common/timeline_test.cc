#include "common/timeline/timeline.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/thread.h"
#include "tests/tools/file_bytes.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

using Json = nlohmann::json;
using test::TempDir;

std::vector<Json> EventsOf(const std::string& text, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : Json::parse(text)) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

std::int64_t Nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

// Whether `inner` lies in `outer`, on the same thread.
bool LiesIn(const Json& inner, const Json& outer) {
  const std::int64_t start = Nanoseconds(inner.at("ts"));
  const std::int64_t outer_start = Nanoseconds(outer.at("ts"));
  return inner.at("tid") == outer.at("tid") && start >= outer_start &&
         start + Nanoseconds(inner.at("dur")) <= outer_start + Nanoseconds(outer.at("dur"));
}

class TimelineTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(StopTimeline().ok()); }

  const TempDir folder_;
  const std::string path_ = folder_.File("timeline.json");
};

TEST_F(TimelineTest, SpansOfAThreadNestAndTheFileIsJson) {
  ASSERT_TRUE(StartTimeline(path_).ok());
  {
    const TimelineSpan outer(TimelineKind::kCompute, "outer", {{"layer", 3}, {"tokens", -1}});
    const TimelineSpan inner(TimelineKind::kWait, "inner");
  }
  StartThread("named", [] { const TimelineSpan span(TimelineKind::kCluster, "other"); }).join();
  ASSERT_TRUE(StopTimeline().ok());

  const std::string text = test::BytesOfFile(path_);
  const std::vector<Json> spans = EventsOf(text, "X");
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].at("name"), "inner");
  EXPECT_EQ(spans[0].at("cat"), "wait");
  EXPECT_EQ(spans[1].at("name"), "outer");
  EXPECT_EQ(spans[1].at("args"), Json({{"layer", 3}, {"tokens", -1}}));
  EXPECT_TRUE(LiesIn(spans[0], spans[1]));
  EXPECT_NE(spans[2].at("tid"), spans[1].at("tid"));
  std::map<std::int64_t, std::string> names;
  for (const Json& event : EventsOf(text, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names.size(), 2U);
  EXPECT_EQ(names.at(spans[2].at("tid")), "named");
  const std::vector<Json> ends = EventsOf(text, "i");
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].at("args").at("dropped_event_count"), 0);
}

TEST_F(TimelineTest, FlightsBeginAndEndInPairs) {
  ASSERT_TRUE(StartTimeline(path_).ok());
  const TimelineClock::time_point start = TimelineClock::now();
  const TimelineClock::time_point end = start + std::chrono::microseconds(7);
  AddTimelineFlight(TimelineKind::kIo, "fetch", start, end, {{"layer", 1}});
  AddTimelineFlight(TimelineKind::kIo, "fetch", start, end, {{"layer", 2}});
  ASSERT_TRUE(StopTimeline().ok());
  const std::vector<Json> begins = EventsOf(test::BytesOfFile(path_), "b");
  const std::vector<Json> ends = EventsOf(test::BytesOfFile(path_), "e");
  ASSERT_EQ(begins.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_NE(begins[0].at("id"), begins[1].at("id"));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(begins[i].at("id"), ends[i].at("id"));
    EXPECT_EQ(begins[i].at("args").at("layer"), i + 1);
    EXPECT_EQ(Nanoseconds(ends[i].at("ts")) - Nanoseconds(begins[i].at("ts")), 7000);
  }
}

TEST_F(TimelineTest, AProcessThatWasKilledLeavesAllThatWasWritten) {
  ASSERT_TRUE(StartTimeline(path_).ok());
  { const TimelineSpan span(TimelineKind::kCompute, "before"); }
  FlushTimeline();
  { const TimelineSpan span(TimelineKind::kCompute, "behind"); }
  // What its readers do with an array that has no end.
  const std::vector<Json> spans = EventsOf(test::BytesOfFile(path_) + "]", "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("name"), "before");
}

TEST_F(TimelineTest, AFullFileKeepsTheOldestEventsAndCountsTheOthers) {
  ASSERT_TRUE(StartTimeline(path_, kTimelineBytesMin).ok());
  constexpr std::int64_t kEvents = 1000;
  for (std::int64_t i = 0; i < kEvents; ++i) {
    const TimelineSpan span(TimelineKind::kCompute, "event", {{"number", i}});
  }
  ASSERT_TRUE(StopTimeline().ok());
  const std::string text = test::BytesOfFile(path_);
  EXPECT_LE(std::ssize(text), kTimelineBytesMin);
  const std::vector<Json> spans = EventsOf(text, "X");
  ASSERT_GT(spans.size(), 10U);
  for (std::size_t i = 0; i < spans.size(); ++i) EXPECT_EQ(spans[i].at("args").at("number"), i);
  EXPECT_EQ(EventsOf(text, "i").back().at("args").at("dropped_event_count"),
            kEvents - std::ssize(spans));
}

TEST_F(TimelineTest, ManyThreadsFillManyBuffers) {
  ASSERT_TRUE(StartTimeline(path_).ok());
  constexpr std::int64_t kThreads = 4;
  constexpr std::int64_t kEvents = 1000;
  std::vector<std::thread> threads;
  for (std::int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      for (std::int64_t i = 0; i < kEvents; ++i) {
        const TimelineSpan span(TimelineKind::kCompute, "event", {{"thread", thread}});
        if (i % 100 == 0) FlushTimeline();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(StopTimeline().ok());
  const std::string text = test::BytesOfFile(path_);
  EXPECT_GT(std::ssize(text), 2 * kTimelineBufferBytes);
  EXPECT_EQ(std::ssize(EventsOf(text, "X")), kThreads * kEvents);
}

TEST_F(TimelineTest, WhatIsNotWhollyInItIsNotInTheFile) {
  {
    const TimelineSpan begun_before(TimelineKind::kCompute, "begun_before");
    ASSERT_TRUE(StartTimeline(path_).ok());
  }
  const TimelineClock::time_point long_ago = TimelineClock::now() - std::chrono::hours(1);
  AddTimelineFlight(TimelineKind::kIo, "begun_before", long_ago, TimelineClock::now(), {});
  const TimelineSpan open(TimelineKind::kCompute, "open");
  ASSERT_TRUE(StopTimeline().ok());
  EXPECT_FALSE(TimelineIsOn());
  const std::string text = test::BytesOfFile(path_);
  EXPECT_TRUE(EventsOf(text, "X").empty());
  EXPECT_TRUE(EventsOf(text, "b").empty());
  EXPECT_EQ(EventsOf(text, "i").size(), 1U);
}

TEST_F(TimelineTest, ASecondOneIsRefusedAndALaterOneReplacesTheFile) {
  ASSERT_TRUE(StartTimeline(path_).ok());
  const absl::Status second = StartTimeline(folder_.File("second.json"));
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  { const TimelineSpan span(TimelineKind::kCompute, "first"); }
  ASSERT_TRUE(StopTimeline().ok());
  ASSERT_TRUE(StartTimeline(path_).ok());
  { const TimelineSpan span(TimelineKind::kCompute, "later"); }
  ASSERT_TRUE(StopTimeline().ok());
  const std::string text = test::BytesOfFile(path_);
  ASSERT_EQ(EventsOf(text, "X").size(), 1U);
  EXPECT_EQ(EventsOf(text, "X")[0].at("name"), "later");
  // This thread has a name in each of them.
  EXPECT_EQ(EventsOf(text, "M").size(), 2U);
}

TEST_F(TimelineTest, FilesThatCannotBeWrittenAreNamed) {
  EXPECT_EQ(StartTimeline(folder_.File("absent/x")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(StartTimeline(path_, kTimelineBytesMin - 1).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(StartTimeline("/dev/full").ok());
  { const TimelineSpan span(TimelineKind::kCompute, "lost"); }
  FlushTimeline();
  { const TimelineSpan span(TimelineKind::kCompute, "lost"); }
  const absl::Status stopped = StopTimeline();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(stopped).find("/dev/full"), std::string::npos);
}

}  // namespace
}  // namespace cairn
