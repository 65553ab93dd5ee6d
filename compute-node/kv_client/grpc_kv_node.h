// GrpcKvNode is a KvNode over gRPC and a Unix socket. Calls without a stream are tried again while
// the node is away, for at most reconnect_time_max.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/kv_client/node_link.h"

namespace cairn::compute {

class GrpcKvNode : public KvNode {
 public:
  // One attempt. NOT_FOUND or UNAVAILABLE when no KV node serves the socket; INVALID_ARGUMENT a
  // path that no socket can have; PERMISSION_DENIED its mode; FAILED_PRECONDITION another protocol.
  static absl::StatusOr<std::unique_ptr<GrpcKvNode>> Connect(const std::string& socket_path,
                                                             const KvClientOptions& options);

  absl::StatusOr<SessionRef> Create(const CreateSession& request) override;
  absl::StatusOr<std::unique_ptr<KvSession>> Open(const SessionRef& session) override;
  absl::Status Delete(const SessionRef& session) override;
  absl::StatusOr<SessionInfo> Get(const SessionRef& session, ListDetail detail) override;
  absl::StatusOr<std::vector<SessionInfo>> List(ListDetail detail) override;
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) override;
  absl::Status Supersede(const Supersession& request) override;
  absl::StatusOr<KvStats> Stats() override;
  void StopWaiting(std::chrono::milliseconds time_max) override {
    link_->StopWaitingAt(std::chrono::steady_clock::now() + time_max);
  }
  absl::Status Probe(std::chrono::milliseconds time_max) override;
  std::int64_t part_bytes_max() const override { return part_bytes_max_; }

  // "io_uring", "threads" or "memory", as the node said when it was connected to.
  const std::string& io_engine() const { return io_engine_; }

 private:
  explicit GrpcKvNode(std::shared_ptr<NodeLink> link) : link_(std::move(link)) {}

  // Calls `method` until the node answers. `named`: the session of an existing store that the call
  // is about, 0: none; then only the store that the first try met will do. `tries` counts the calls
  // made.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(SessionId named, StubMethod<Request, Response> method,
                                const Request& request, int* tries = nullptr);

  const std::shared_ptr<NodeLink> link_;
  std::int64_t part_bytes_max_ = 0;
  std::string io_engine_;
};

}  // namespace cairn::compute
