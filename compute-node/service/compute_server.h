// ComputeServer serves a DaemonState on a Unix socket: InferenceService, the standard health
// service and reflection.
//
// Threading:  methods may be called from any thread, one at a time.
// Blocking:   Start binds the socket; StopGenerations waits for generations to be stopped and
//             stored, EndCalls for all calls.
// Errors:     of Start: INVALID_ARGUMENT path too long; ALREADY_EXISTS the socket is taken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/unix_server.h"
#include "common/rpc/unix_socket.h"
#include "compute-node/service/generation_queue.h"
#include "compute-node/service/inference_service.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

// Calls at once, the waiting generations among them.
inline constexpr int kCallThreadsMax = 64;

struct ComputeServerOptions {
  // Absolute.
  std::string socket_path;
  mode_t socket_mode = rpc::kSocketModeDefault;
  // Generations at once; more wait.
  int generation_count_max = 1;
};

class ComputeServer {
 public:
  // Serves when it returns, but reports NOT_SERVING to health checks until SetServing.
  static absl::StatusOr<std::unique_ptr<ComputeServer>> Start(const ComputeServerOptions& options,
                                                              DaemonState& state);
  ~ComputeServer();  // stops, and waits for all generations
  ComputeServer(const ComputeServer&) = delete;
  ComputeServer& operator=(const ComputeServer&) = delete;

  // What health checks are told, from any thread. Once generations are stopped it stays
  // NOT_SERVING.
  void SetServing(bool serving);
  // For generations of other endpoints, which end before the server dies.
  GenerationQueue& queue() { return queue_; }
  // Refuses new calls, cancels generations and waits until each has stored what it has. False if
  // one did not end within `time_max`.
  bool StopGenerations(std::chrono::milliseconds time_max);
  // Behind StopGenerations: closes the socket. Calls in progress are cancelled after `time_max`,
  // and waited for; one that waits for the KV node does not see that.
  void EndCalls(std::chrono::milliseconds time_max);

 private:
  ComputeServer(const ComputeServerOptions& options, DaemonState& state);

  DaemonState& state_;
  GenerationQueue queue_;
  InferenceServiceImpl service_;
  std::unique_ptr<rpc::UnixServer> server_;
  Mutex serving_mutex_;
  bool stopping_ CAIRN_GUARDED_BY(serving_mutex_) = false;
};

}  // namespace cairn::compute
