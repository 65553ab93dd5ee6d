// HttpServer reads requests from a loopback port and gives them to an HttpHandler.
//
// Limits:     kHttpConnectionsMax: one connection more takes the place of the one that has waited
//             longest for its next request; if all are busy it gets 503. Those of a request:
//             http_syntax.h, and the memory's. Bodies are not decompressed (415) and replies not
//             compressed.
// Threading:  Start, Refuse and Stop on one thread. The handler is called on a thread of each
//             connection, "cn-http-N", up to kHttpConnectionsMax at once.
// Errors:     of Start: ALREADY_EXISTS the port is taken; PERMISSION_DENIED; others of sockets.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/seldom.h"
#include "compute-node/http/http_types.h"
#include "compute-node/http/listen_address.h"

namespace cairn::compute {

inline constexpr int kHttpConnectionsMax = 64;
// On one connection; then it is closed.
inline constexpr int kHttpRequestsMax = 1000;
// How long a connection may wait for its next request.
inline constexpr std::chrono::seconds kHttpIdleTimeMax{60};

class HttpServer {
 public:
  // Borrows `handler` and `memory`, from which bodies are claimed; they outlive it. Accepts
  // connections when it returns.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const ListenAddress& address,
                                                           HttpHandler& handler,
                                                           MemoryBudget& memory);
  ~HttpServer();  // Stop without time
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that the system chose.
  const ListenAddress& address() const { return address_; }
  // Connections that wait for a request; any thread. Behind a reply that a client has read, it may
  // take a moment until its connection is one of them.
  int idle_count();

  // Accepts no more connections.
  void Refuse();
  // Refuse; then clients look gone to the handler; waits until every connection has ended, and cuts
  // those that still write after `time_max`.
  void Stop(std::chrono::milliseconds time_max);

 private:
  using Clock = std::chrono::steady_clock;
  class Connection;
  struct Slot {
    std::thread thread;
    int socket = -1;                             // -1: none
    std::optional<Clock::time_point> idle_from;  // since when it waits for a request
  };

  HttpServer(ListenAddress address, HttpHandler& handler, MemoryBudget& memory, int listener);
  void Accept();
  // `error` is why accept failed. Waits a moment if that may pass.
  void HandleAcceptError(int error);
  void TakeConnection(int socket);
  Slot* TakeSlot(int socket);
  Slot* FindFreeLocked() CAIRN_REQUIRES(mutex_);
  // Ends the connection that is idle longest; false: none is.
  bool EndIdlestLocked() CAIRN_REQUIRES(mutex_);
  void RunConnection(Slot& slot, int socket);
  bool WaitForRequest(Slot& slot, const Connection& connection);
  bool AllEnded() CAIRN_REQUIRES(mutex_);

  ListenAddress address_;
  HttpHandler& handler_;
  MemoryBudget& memory_;
  const int listener_;
  std::atomic<bool> refusing_{false};
  Seldom tell_no_descriptors_;  // the accept thread's
  std::thread accept_thread_;

  Mutex mutex_;
  CondVar changed_;
  std::array<Slot, kHttpConnectionsMax> slots_;  // threads: the accept thread's, then Stop's
};

}  // namespace cairn::compute
