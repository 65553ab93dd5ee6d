#include "common/timeline/timeline.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/log/log.h"

namespace cairn {
namespace {

// What StopTimeline adds is kept free from the start.
constexpr std::int64_t kEndBytesMax = 256;
constexpr int kFileMode = 0644;

// Of this thread: the timeline in which it has given its name.
thread_local std::int64_t named_in = 0;

const char* CategoryOf(TimelineKind kind) {
  switch (kind) {
    case TimelineKind::kCompute:
      return "compute";
    case TimelineKind::kWait:
      return "wait";
    case TimelineKind::kIo:
      return "io";
    case TimelineKind::kCluster:
      return "cluster";
    case TimelineKind::kCheckpoint:
      return "checkpoint";
    case TimelineKind::kTurn:
      return "turn";
  }
  return "compute";
}

double Microseconds(TimelineClock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string NumbersText(std::span<const TimelineNumber> numbers) {
  std::string text = "{";
  for (const TimelineNumber& number : numbers) {
    fmt::format_to(std::back_inserter(text), "{}\"{}\":{}", text.size() > 1 ? "," : "", number.name,
                   number.value);
  }
  return text + "}";
}

// Names of threads come from this program, but the first one's from its file.
std::string WithoutEscapes(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; },
      '_');
  return text;
}

std::string ThreadName() {
  char name[16] = {};  // TASK_COMM_LEN
  if (pthread_getname_np(pthread_self(), name, sizeof(name)) != 0) return "?";
  return WithoutEscapes(name);
}

class Timeline {
 public:
  absl::Status Start(const std::string& path, std::int64_t bytes_max);
  void Flush();
  absl::Status Stop();
  void AddEvent(TimelineKind kind, const char* name, TimelineClock::time_point start,
                TimelineClock::duration took, std::span<const TimelineNumber> numbers);
  void AddFlight(TimelineKind kind, const char* name, TimelineClock::time_point start,
                 TimelineClock::time_point end, std::span<const TimelineNumber> numbers);

 private:
  void NameThread() CAIRN_REQUIRES(mutex_);
  // Takes whole events. False if they do not fit.
  bool Add(std::string_view events) CAIRN_REQUIRES(mutex_);
  void Write() CAIRN_REQUIRES(mutex_);

  Mutex mutex_;
  int file_ CAIRN_GUARDED_BY(mutex_) = -1;  // -1: no timeline
  std::int64_t number_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string path_ CAIRN_GUARDED_BY(mutex_);
  std::string buffer_ CAIRN_GUARDED_BY(mutex_);
  std::int64_t room_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::int64_t dropped_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::int64_t flight_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  absl::Status status_ CAIRN_GUARDED_BY(mutex_);
  TimelineClock::time_point origin_ CAIRN_GUARDED_BY(mutex_);
};

absl::Status Timeline::Start(const std::string& path, std::int64_t bytes_max) {
  if (bytes_max < kTimelineBytesMin) {
    return InvalidArgument("start timeline {}: {} bytes at most; give it {} or more", path,
                           bytes_max, kTimelineBytesMin);
  }
  const MutexLock lock(mutex_);
  if (file_ >= 0) {
    return FailedPrecondition("start timeline {}: there is one already, in {}", path, path_);
  }
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kFileMode);
  if (file_ < 0) return ErrnoStatus(errno, fmt::format("create timeline {}", path));
  ++number_;
  path_ = path;
  buffer_.reserve(static_cast<std::size_t>(kTimelineBufferBytes));
  buffer_ = fmt::format(
      "[\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"tid\":{0},\"args\":"
      "{{\"name\":\"cairn\"}}}}",
      ::getpid());
  room_bytes_ = bytes_max - kEndBytesMax - std::ssize(buffer_);
  dropped_count_ = 0;
  flight_count_ = 0;
  status_ = absl::OkStatus();
  origin_ = TimelineClock::now();
  timeline_internal::is_on.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

void Timeline::Flush() {
  const MutexLock lock(mutex_);
  if (file_ >= 0) Write();
}

absl::Status Timeline::Stop() {
  const MutexLock lock(mutex_);
  if (file_ < 0) return absl::OkStatus();
  timeline_internal::is_on.store(false, std::memory_order_relaxed);
  const std::string end = fmt::format(
      ",\n{{\"ph\":\"i\",\"s\":\"g\",\"name\":\"end\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
      "\"args\":{{\"dropped_event_count\":{}}}}}\n]\n",
      ::getpid(), ::gettid(), Microseconds(TimelineClock::now() - origin_), dropped_count_);
  CAIRN_CHECK_LE(std::ssize(end), kEndBytesMax);
  buffer_ += end;
  Write();
  if (::close(std::exchange(file_, -1)) != 0 && status_.ok()) {
    status_ = ErrnoStatus(errno, fmt::format("close timeline {}", path_));
  }
  buffer_ = std::string();
  return std::exchange(status_, absl::OkStatus());
}

void Timeline::NameThread() {
  if (named_in == number_) return;
  // Also if it does not fit: then no later event does.
  named_in = number_;
  Add(fmt::format(
      ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":"
      "\"{}\"}}}}",
      ::getpid(), ::gettid(), ThreadName()));
}

void Timeline::AddEvent(TimelineKind kind, const char* name, TimelineClock::time_point start,
                        TimelineClock::duration took, std::span<const TimelineNumber> numbers) {
  const MutexLock lock(mutex_);
  // One that began before the timeline did, or in an earlier one.
  if (file_ < 0 || start < origin_) return;
  NameThread();
  const std::string event = fmt::format(
      ",\n{{\"ph\":\"X\",\"dur\":{:.3f},\"cat\":\"{}\",\"name\":\"{}\",\"pid\":{},\"tid\":{},"
      "\"ts\":{:.3f},\"args\":{}}}",
      Microseconds(took), CategoryOf(kind), name, ::getpid(), ::gettid(),
      Microseconds(start - origin_), NumbersText(numbers));
  if (!Add(event)) ++dropped_count_;
}

// Begin and end together, so that neither is in the file alone.
void Timeline::AddFlight(TimelineKind kind, const char* name, TimelineClock::time_point start,
                         TimelineClock::time_point end, std::span<const TimelineNumber> numbers) {
  const MutexLock lock(mutex_);
  if (file_ < 0 || start < origin_) return;
  const std::string what =
      fmt::format("\"cat\":\"{}\",\"name\":\"{}\",\"id\":{},\"pid\":{},\"tid\":{}",
                  CategoryOf(kind), name, ++flight_count_, ::getpid(), ::gettid());
  const std::string events = fmt::format(
      ",\n{{\"ph\":\"b\",{0},\"ts\":{1:.3f},\"args\":{3}}},\n{{\"ph\":\"e\",{0},\"ts\":{2:.3f}}}",
      what, Microseconds(start - origin_), Microseconds(end - origin_), NumbersText(numbers));
  if (!Add(events)) ++dropped_count_;
}

bool Timeline::Add(std::string_view events) {
  if (!status_.ok() || std::ssize(events) > room_bytes_) {
    // Shorter ones would still fit, and look as if nothing had been between them.
    room_bytes_ = 0;
    if (status_.ok() && dropped_count_ == 0)
      LogWarning("timeline is full path={}: events are dropped", path_);
    return false;
  }
  room_bytes_ -= std::ssize(events);
  if (std::ssize(buffer_) + std::ssize(events) > kTimelineBufferBytes) Write();
  buffer_ += events;
  return true;
}

void Timeline::Write() {
  std::string_view rest = buffer_;
  while (!rest.empty() && status_.ok()) {
    const ssize_t size = ::write(file_, rest.data(), rest.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      status_ =
          ErrnoStatus(errno, fmt::format("write {} bytes to timeline {}", rest.size(), path_));
      LogWarning("{}: later events are dropped", Message(status_));
      break;
    }
    rest.remove_prefix(static_cast<std::size_t>(size));
  }
  buffer_.clear();
}

// Never destroyed: threads may end spans while the process ends.
Timeline& TheTimeline() {
  static Timeline& timeline = *new Timeline;
  return timeline;
}

std::span<const TimelineNumber> AsSpan(std::initializer_list<TimelineNumber> numbers) {
  CAIRN_CHECK_LE(numbers.size(), kTimelineNumbersMax);
  return {numbers.begin(), numbers.size()};
}

}  // namespace

absl::Status StartTimeline(const std::string& path, std::int64_t bytes_max) {
  return TheTimeline().Start(path, bytes_max);
}

void FlushTimeline() {
  if (TimelineIsOn()) TheTimeline().Flush();
}

absl::Status StopTimeline() { return TheTimeline().Stop(); }

void AddTimelineFlight(TimelineKind kind, const char* name, TimelineClock::time_point start,
                       TimelineClock::time_point end,
                       std::initializer_list<TimelineNumber> numbers) {
  if (TimelineIsOn()) TheTimeline().AddFlight(kind, name, start, end, AsSpan(numbers));
}

void TimelineSpan::Start(TimelineKind kind, const char* name,
                         std::initializer_list<TimelineNumber> numbers) {
  const std::span<const TimelineNumber> all = AsSpan(numbers);
  name_ = name;
  kind_ = kind;
  number_count_ = all.size();
  std::copy(all.begin(), all.end(), std::begin(numbers_));
  start_ = TimelineClock::now();
}

void TimelineSpan::End() {
  TheTimeline().AddEvent(kind_, name_, start_, TimelineClock::now() - start_,
                         std::span(numbers_).first(number_count_));
}

}  // namespace cairn
