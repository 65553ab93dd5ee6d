// HttpServer reads requests from a loopback port and gives them to an HttpHandler. The library
// (cpp-httplib) does HTTP's syntax; the sockets, the limits and the times are here, because its own
// server has none for a header, a chunked body or the connections at once.
//
// Limits:     the constants below. A header or a body that is longer: 413;
//             one connection more: 503; a client that takes longer to send: the connection is
//             closed. Bodies are not decompressed (415) and replies not compressed.
// Threading:  Start, Refuse and Stop on one thread. The handler is called on a thread of each
//             connection, "cn-http-N", up to kHttpConnectionsMax at once.
// Errors:     of Start: ALREADY_EXISTS the port is taken; PERMISSION_DENIED; others of sockets.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/http/http_types.h"
#include "compute-node/http/listen_address.h"

namespace cairn::compute {

inline constexpr int kHttpConnectionsMax = 64;
inline constexpr int kHttpPathBytesMax = 1024;
// All header lines of a request and its first line.
inline constexpr std::int64_t kHttpHeaderBytesMax = 16 << 10;
// A prompt of a million tokens fits, as text or as numbers.
inline constexpr std::int64_t kHttpBodyBytesMax = 16 << 20;
// From the first byte of a request to the end of its header, and then of its body.
inline constexpr std::chrono::seconds kHttpHeaderTimeMax{10};
inline constexpr std::chrono::seconds kHttpBodyTimeMax{60};
// On one connection; then it is closed.
inline constexpr int kHttpRequestsMax = 1000;
// How long a connection may wait for its next request.
inline constexpr std::chrono::seconds kHttpIdleTimeMax{60};
// How long a write may wait for a client that does not read.
inline constexpr std::chrono::seconds kHttpWriteTimeMax{10};

class HttpServer {
 public:
  // Borrows `handler`, which outlives it. Accepts connections when it returns.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const ListenAddress& address,
                                                           HttpHandler& handler);
  ~HttpServer();  // Stop without time
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that the system chose.
  const ListenAddress& address() const { return address_; }

  // Accepts no more connections.
  void Refuse();
  // Refuse; then clients look gone to the handler; waits until every connection has ended, and cuts
  // those that still write after `time_max`.
  void Stop(std::chrono::milliseconds time_max);

 private:
  struct Slot {
    std::thread thread;
    int socket = -1;  // -1: none
  };

  HttpServer(ListenAddress address, HttpHandler& handler, int listener);
  void Accept();
  void TakeConnection(int socket);
  void RunConnection(Slot& slot, int socket);
  bool AllEnded() CAIRN_REQUIRES(mutex_);

  ListenAddress address_;
  HttpHandler& handler_;
  const int listener_;
  std::atomic<bool> refusing_{false};
  std::thread accept_thread_;

  Mutex mutex_;
  CondVar changed_;
  std::array<Slot, kHttpConnectionsMax> slots_;  // threads: the accept thread's, then Stop's
};

}  // namespace cairn::compute
