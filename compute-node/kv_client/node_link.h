// NodeLink reaches one KV node: handshake, gRPC channel, capabilities; and again when the node was
// restarted. Sessions and the node object share one.
//
// Threading:  NodeLink is safe from any thread; a NodeConnection is constant.
// Blocking:   Connect and Get wait for the node, at most kConnectTimeMax.
// Errors:     NOT_FOUND and UNAVAILABLE: nobody serves the socket; PERMISSION_DENIED: its mode.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "cairn/kv/v1/kv.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/kv_client/arena_map.h"
#include "compute-node/kv_client/kv_client.h"

namespace cairn::compute {

namespace pb = ::cairn::kv::v1;

// Of one attempt to connect.
inline constexpr std::chrono::milliseconds kConnectTimeMax{5000};
// Of one call that has no stream: opening a large session reads its rows from flash.
inline constexpr std::chrono::milliseconds kCallTimeMax{60000};
// One call of a process that is about to end: a node that hangs must not take what others need.
inline constexpr std::chrono::milliseconds kLastCallTimeMax{500};

// A call of the KV node that has no stream.
template <typename Request, typename Response>
using StubMethod = grpc::Status (pb::KvService::Stub::*)(grpc::ClientContext*, const Request&,
                                                         Response*);

struct NodeConnection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::KvService::Stub> stub;
  std::string token;
  pb::GetCapabilitiesResponse capabilities;
  std::shared_ptr<ArenaMap> arena;   // null: entries come through the socket
  bool checkpoints_at_stop = false;  // of the options

  // Identity and deadline of a call.
  void Prepare(grpc::ClientContext* context, std::chrono::milliseconds time_max) const;
  // Identity only: of a stream.
  void Prepare(grpc::ClientContext* context) const;
};

// Of a call with that deadline.
absl::Status StatusOfCall(const grpc::Status& status, std::chrono::milliseconds time_max);

class NodeLink {
 public:
  NodeLink(std::string socket_path, const KvClientOptions& options)
      : options_(options), socket_path_(std::move(socket_path)) {}

  const KvClientOptions& options() const { return options_; }
  // When to give up a node that cannot be reached: reconnect_time_max after it went away. Whoever
  // comes later does not wait for it anew. StopWaitingAt at the latest.
  std::chrono::steady_clock::time_point WaitEnd() const;
  // Whoever waits gives up at this time at the latest.
  void StopWaitingAt(std::chrono::steady_clock::time_point time) { stop_.store(time); }
  // For one call: `time_max`, or what StopWaitingAt has left of it.
  std::chrono::milliseconds CallTime(std::chrono::milliseconds time_max) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        stop_.load() - std::chrono::steady_clock::now());
    return std::min(time_max, std::max(left, kLastCallTimeMax));
  }
  bool stopped() const { return std::chrono::steady_clock::now() >= stop_.load(); }
  // The connection there is, or a new one. One attempt.
  absl::StatusOr<std::shared_ptr<const NodeConnection>> Get();
  // The connection is broken: the next Get makes a new one.
  void Drop(const std::shared_ptr<const NodeConnection>& broken);
  // UNAVAILABLE: the node was tried until WaitEnd; `last` says how that ended.
  absl::Status DidNotComeBack(const absl::Status& last) const;
  const std::string& socket_path() const { return socket_path_; }

 private:
  absl::StatusOr<std::shared_ptr<const NodeConnection>> Connect() const;

  const KvClientOptions options_;
  const std::string socket_path_;
  std::atomic<std::chrono::steady_clock::time_point> stop_{
      std::chrono::steady_clock::time_point::max()};
  mutable Mutex mutex_;
  std::shared_ptr<const NodeConnection> current_ CAIRN_GUARDED_BY(mutex_);
  // Since when there is no connection, though one was wanted.
  std::optional<std::chrono::steady_clock::time_point> away_since_ CAIRN_GUARDED_BY(mutex_);
};

// Waits between tries, longer each time, until a deadline. One thread.
class Backoff {
 public:
  // `link` outlives it.
  explicit Backoff(const NodeLink& link)
      : link_(link),
        wait_(link.options().backoff_min),
        wait_max_(link.options().backoff_max),
        deadline_(link.WaitEnd()) {}

  // When the next try is due; past the deadline there is none.
  std::chrono::steady_clock::time_point Next();
  bool expired() const { return std::chrono::steady_clock::now() >= deadline_ || link_.stopped(); }

 private:
  const NodeLink& link_;
  std::chrono::milliseconds wait_;
  const std::chrono::milliseconds wait_max_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace cairn::compute
