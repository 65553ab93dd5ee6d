// The timeline of a process: what each of its threads did when, written to a file while it runs, in
// the JSON that Chrome's trace viewer (chrome://tracing) and Perfetto read. docs/timeline.md has
// the events. There is at most one timeline, as there is one log.
//
//   const TimelineSpan span(TimelineKind::kCompute, "feed_forward", {{"layer", layer}});
//
// Off (as it is until StartTimeline) a span costs a load and a branch.
//
// Units:      microseconds since StartTimeline in the file.
// Threading:  safe from any thread. A span ends on the thread that made it, so spans of a thread
//             nest. StopTimeline ends no span: one that is open then is not in the file.
// Memory:     kTimelineBufferBytes.
// Limits:     the file has at most `bytes_max` bytes. Events that no longer fit are dropped and
//             counted; the count is the last event. So the oldest are kept.
// Files:      the buffer is written when it is full and by FlushTimeline, in whole events: of a
//             process that was killed the file lacks what was in the buffer and the closing
//             bracket, which its readers do without. An event is written when it ends: the file is
//             not in the order of times.
// Errors:     a write that fails is logged once, and ends the timeline: later events are dropped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/base/status.h"

namespace cairn {

inline constexpr std::int64_t kTimelineBytesMax = std::int64_t{256} << 20;
inline constexpr std::int64_t kTimelineBytesMin = 4096;
inline constexpr std::int64_t kTimelineBufferBytes = std::int64_t{64} << 10;

// The event's category.
enum class TimelineKind : std::uint8_t { kCompute, kWait, kIo, kCluster, kCheckpoint, kTurn };

// Names are literals that need no escape in JSON, as those of events.
struct TimelineNumber {
  const char* name = "";
  std::int64_t value = 0;
};
inline constexpr std::size_t kTimelineNumbersMax = 4;

// Begins a timeline in a new file, which replaces an older one. FAILED_PRECONDITION if there is one
// already; INVALID_ARGUMENT if bytes_max is less than kTimelineBytesMin; those of ErrnoStatus.
absl::Status StartTimeline(const std::string& path, std::int64_t bytes_max = kTimelineBytesMax);
// Writes what is in the buffer, so that the file has all that ended.
void FlushTimeline();
// Ends the file. OK and nothing if there is none. The first error of writing.
absl::Status StopTimeline();

namespace timeline_internal {
inline std::atomic<bool> is_on{false};
}  // namespace timeline_internal

inline bool TimelineIsOn() { return timeline_internal::is_on.load(std::memory_order_relaxed); }

using TimelineClock = std::chrono::steady_clock;

// Something that is not work of one thread and overlaps its like: it gets a line of its own.
void AddTimelineFlight(TimelineKind kind, const char* name, TimelineClock::time_point start,
                       TimelineClock::time_point end,
                       std::initializer_list<TimelineNumber> numbers);

// From construction to destruction, on one thread.
class TimelineSpan {
 public:
  // At most kTimelineNumbersMax numbers.
  TimelineSpan(TimelineKind kind, const char* name,
               std::initializer_list<TimelineNumber> numbers = {}) {
    if (TimelineIsOn()) Start(kind, name, numbers);
  }
  ~TimelineSpan() {
    if (name_ != nullptr) End();
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  void Start(TimelineKind kind, const char* name, std::initializer_list<TimelineNumber> numbers);
  void End();

  const char* name_ = nullptr;  // null: the timeline was off
  TimelineKind kind_ = TimelineKind::kCompute;
  std::size_t number_count_ = 0;
  TimelineNumber numbers_[kTimelineNumbersMax];
  TimelineClock::time_point start_;
};

}  // namespace cairn
