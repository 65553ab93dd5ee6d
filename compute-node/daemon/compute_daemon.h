// ComputeDaemon puts a compute node together from its configuration and takes it apart again. The
// socket is served first, so that apps can ask how far loading is; the model and the KV node follow
// on the thread "cn-load".
//
// Threading:  one thread.
// Blocking:   Start binds a socket. WaitUntilReady waits for the model and the KV node. Stop waits
//             until running generations are stored, at most kStopTimeMax, and then until calls and
//             connections have ended, at most kCallsStopTimeMax.
// Errors:     one message that says what is wrong with which object and what to do.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "common/base/status.h"
#include "common/daemon/paths.h"
#include "compute-node/daemon/config.h"
#include "compute-node/http/http_server.h"
#include "compute-node/http/openai_api.h"
#include "compute-node/service/compute_server.h"
#include "compute-node/service/kv_watch.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

inline constexpr std::chrono::milliseconds kStopTimeMax{10000};
// Of that, for a KV node that is away to come back, so that generations can be stored.
inline constexpr std::chrono::milliseconds kStopKvWaitMax{4000};
// For what is left when every generation is stored. A call may wait for a KV node that is away.
inline constexpr std::chrono::milliseconds kCallsStopTimeMax{5000};
// For HTTP clients to read why their generation ended.
inline constexpr std::chrono::milliseconds kHttpStopTimeMax{2000};
// For gRPC clients to hang up: some look at an idle connection every five seconds only.
inline constexpr std::chrono::milliseconds kGrpcStopTimeMax{1000};

// For a store that is being made to be given up, when the daemon stops before it has one.
inline constexpr std::chrono::milliseconds kUnopenedTimeMax{2000};

class ComputeDaemon {
 public:
  // REQUIRES: a model_path.
  static absl::StatusOr<std::unique_ptr<ComputeDaemon>> Start(const ComputeNodeConfig& config);
  ~ComputeDaemon();
  ComputeDaemon(const ComputeDaemon&) = delete;
  ComputeDaemon& operator=(const ComputeDaemon&) = delete;

  // Returns when generations are served, with the error that prevents it, or with CANCELLED when
  // `signal` becomes a number: then a model may still be loading, and only leaving the process
  // ends that. Once.
  absl::Status WaitUntilReady(const std::atomic<int>& signal);

  // Behind a Stop that came while a model was loading: waits until an embedded store that was being
  // made or waited for is given up.
  void AwaitUnopened();

  // Calls `on_fatal`, from any thread, once the daemon cannot go on; fatal() says why.
  void SetOnFatal(std::function<void()> on_fatal) { state_.SetOnFatal(std::move(on_fatal)); }
  absl::Status fatal() const { return state_.fatal(); }

  // One line of key=value about what is served. REQUIRES: WaitUntilReady returned OK.
  std::string Description() const;

  enum class Stopped : std::uint8_t {
    kAll,
    kCallsLeft,  // only leaving the process ends them; nothing is lost with them
    kLost,       // tokens that clients have seen are not stored, or not all generations ended: then
                 // only leaving the process ends them
  };
  // Health NOT_SERVING, generations stopped and stored, calls ended. What is not as it should be is
  // logged. Once.
  Stopped Stop();

 private:
  explicit ComputeDaemon(const ComputeNodeConfig& config) : config_(config) {}
  absl::Status StartHttp();
  void StopCalls();
  // Of the daemon's health, as far as that is the KV node's.
  void WatchKvNode();
  void Load();
  absl::StatusOr<std::shared_ptr<Runtime>> MakeRuntime();
  // Whether the model can have the configured policy, or each generation would fail; and those of
  // the tuning file, which it reads.
  absl::Status CheckPolicies(Runtime& runtime);
  absl::Status CheckPolicy(Runtime& runtime, const SessionOptions& options);
  // What HTTP clients come back to.
  void KeepConversations(Runtime& runtime);
  absl::StatusOr<std::unique_ptr<KvNode>> ReachKvNode();
  // What helps where nobody listens at the KV node's socket.
  std::string OtherKvNodeAdvice() const;

  const ComputeNodeConfig config_;
  const Environment environment_ = ProcessEnvironment();
  DaemonState state_{config_.request_memory_bytes()};
  std::unique_ptr<ComputeServer> server_;
  // These two run generations on the server's queue. Null: no HTTP.
  std::unique_ptr<OpenAiApi> api_;
  std::unique_ptr<HttpServer> http_;
  std::string kept_label_;          // empty: no HTTP
  std::unique_ptr<KvWatch> watch_;  // null: keys and values are in this process, or not ready yet
  std::promise<absl::Status> load_end_;
  std::future<absl::Status> loaded_ = load_end_.get_future();
  std::thread load_thread_;
  std::atomic<int> stopping_{0};  // not 0 once it is to stop
};

}  // namespace cairn::compute
