// Whether a client reads what is sent to it.
//
// The system takes megabytes for a client that does not, tens of thousands of tokens as events, so
// that writing says nothing for a long time. But the client of a loopback port is a socket of this
// machine, and the system tells how much waits in it to be read (sock_diag, as `ss` asks it).
//
// Threading:  UnreadBytes is safe from any thread; ReadingClient is one thread's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace cairn::compute {

// Bytes that were sent on a TCP connection over loopback and that the other side has not read.
// nullopt: the system does not say, as of a client in another network namespace.
std::optional<std::int64_t> UnreadBytes(int socket);

// Judges from what was sent and what of it is unread, again and again. A client counts as reading
// unless something has been waiting for it for `time_max` and it took not one byte.
class ReadingClient {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ReadingClient(std::chrono::milliseconds time_max) : time_max_(time_max) {}

  // Now. `sent_bytes` on the connection so far; `unread_bytes` of them.
  bool IsReading(Clock::time_point now, std::int64_t sent_bytes, std::int64_t unread_bytes);

 private:
  const std::chrono::milliseconds time_max_;
  std::int64_t read_bytes_ = 0;  // the last time
  bool has_read_all_ = true;
  Clock::time_point progress_;  // when it was last seen to read
};

}  // namespace cairn::compute
