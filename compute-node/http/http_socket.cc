#include "compute-node/http/http_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLingerTimeMax{1000};
// How often within its time writing looks at what the client has read.
constexpr int kLooks = 10;

// Polls until `deadline`; 0 when the time is up, else what happened.
short Poll(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd entry{.fd = descriptor, .events = events, .revents = 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (count > 0) return entry.revents;
    if (count == 0 || errno != EINTR) return 0;
  }
}

}  // namespace

bool HttpSocket::WaitForBytes(std::chrono::milliseconds time_max) const {
  return (Poll(descriptor_, POLLIN, Clock::now() + time_max) & POLLIN) != 0;
}

void HttpSocket::Allow(std::int64_t bytes, std::chrono::milliseconds time,
                       std::chrono::milliseconds pause_max) {
  left_bytes_ = bytes;
  deadline_ = Clock::now() + time;
  pause_max_ = pause_max;
}

HttpSocket::Got HttpSocket::Read(std::string& out) {
  if (left_bytes_ <= 0) return Got::kTooMuch;
  const Clock::time_point now = Clock::now();
  // Also of a client that always has more to send.
  if (now >= deadline_) return Got::kTimeUp;
  const short happened = Poll(descriptor_, POLLIN, std::min(deadline_, now + pause_max_));
  if ((happened & (POLLIN | POLLHUP)) == 0) return happened == 0 ? Got::kTimeUp : Got::kEnd;
  const auto size = static_cast<std::size_t>(std::min(left_bytes_, kHttpReadBytesMax));
  const ssize_t got = ::recv(descriptor_, buffer_.data(), size, MSG_DONTWAIT);
  if (got <= 0) return Got::kEnd;
  left_bytes_ -= got;
  out.append(buffer_.data(), static_cast<std::size_t>(got));
  return Got::kBytes;
}

bool HttpSocket::IsRead() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return true;
  next_look_ = now + write_time_max_ / kLooks;
  // Of a client that the system knows nothing of, only full buffers say it.
  const std::optional<std::int64_t> unread_bytes = UnreadBytes(descriptor_);
  return !unread_bytes.has_value() || client_.IsReading(now, sent_bytes_, *unread_bytes);
}

bool HttpSocket::Write(std::string_view text) {
  Clock::time_point deadline = Clock::now() + write_time_max_;
  while (!text.empty()) {
    if (!IsRead()) return false;
    const ssize_t sent = ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      sent_bytes_ += sent;
      text.remove_prefix(static_cast<std::size_t>(sent));
      deadline = Clock::now() + write_time_max_;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    const Clock::time_point now = Clock::now();
    if (now >= deadline && !UnreadBytes(descriptor_).has_value()) return false;
    if ((Poll(descriptor_, POLLOUT, now + write_time_max_ / kLooks) & (POLLERR | POLLHUP)) != 0)
      return false;
  }
  return true;
}

bool HttpSocket::connected() const {
  const short happened = Poll(descriptor_, POLLRDHUP, Clock::time_point());
  return (happened & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

void HttpSocket::Linger() {
  ::shutdown(descriptor_, SHUT_WR);
  Allow(std::numeric_limits<std::int64_t>::max(), kLingerTimeMax, kLingerTimeMax);
  std::string dropped;
  while (Read(dropped) == Got::kBytes) dropped.clear();
}

}  // namespace cairn::compute
