// HttpSocket is one connection of HttpServer: it reads and writes within limits of bytes and time.
//
// Threading:  one thread.
// Blocking:   reading until the time that Allow gave is up, writing for kHttpWriteTimeMax while the
//             client reads nothing.
// Ownership:  borrows the descriptor.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/http/reading_client.h"

namespace cairn::compute {

// How long a client may read nothing though something waits for it.
inline constexpr std::chrono::seconds kHttpWriteTimeMax{10};
// What one call of Read takes at most.
inline constexpr std::int64_t kHttpReadBytesMax = 16 << 10;

class HttpSocket {
 public:
  enum class Got {
    kBytes,
    kEnd,      // the client closed its side, or the connection is broken
    kTooMuch,  // it has sent all that it may
    kTimeUp,
  };

  explicit HttpSocket(int descriptor, std::chrono::milliseconds write_time_max = kHttpWriteTimeMax)
      : descriptor_(descriptor),
        write_time_max_(write_time_max),
        client_(write_time_max),
        buffer_(static_cast<std::size_t>(kHttpReadBytesMax)) {}

  // Whether something can be read, or the connection has ended, within `time_max`.
  bool WaitForBytes(std::chrono::milliseconds time_max) const;
  // What may be read from now on: so many bytes until then, with no longer pause than that.
  void Allow(std::int64_t bytes, std::chrono::milliseconds time,
             std::chrono::milliseconds pause_max);
  // Appends what is there to `out`; waits until something is.
  Got Read(std::string& out);
  // False: the client is gone, or has read nothing for kHttpWriteTimeMax.
  bool Write(std::string_view text);

  // False when the client has closed its side.
  bool connected() const;
  // Sends the end, and drops what still comes for a while: a socket that is closed with unread
  // bytes takes the reply away from the client.
  void Linger();

 private:
  using Clock = std::chrono::steady_clock;

  // Asks the system from time to time.
  bool IsRead();

  const int descriptor_;
  const std::chrono::milliseconds write_time_max_;
  ReadingClient client_;
  std::int64_t sent_bytes_ = 0;
  Clock::time_point next_look_;  // at what the client has read
  std::vector<char> buffer_;
  std::int64_t left_bytes_ = 0;
  Clock::time_point deadline_;
  std::chrono::milliseconds pause_max_{0};
};

}  // namespace cairn::compute
