// UnixServer serves one gRPC service on a Unix socket, with the standard health service and
// reflection. UnixAcceptor accepts for it, whose limits are those of this server.
//
// Threading:  methods may be called from any thread, one at a time.
// Blocking:   Start binds the socket; Shutdown waits for calls up to its deadline.
// Ownership:  borrows the service, which must outlive it.
// Errors:     of Start: INVALID_ARGUMENT path too long; ALREADY_EXISTS the socket is taken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/base/status.h"
#include "common/rpc/unix_acceptor.h"
#include "common/rpc/unix_socket.h"

namespace cairn::rpc {

// A connection without a call is closed then; a client's library opens another one when it needs
// it.
inline constexpr std::chrono::seconds kIdleTimeMax{60};

struct UnixServerOptions {
  // Absolute.
  std::string socket_path;
  mode_t socket_mode = kSocketModeDefault;
  // As the health service knows it: "cairn.kv.v1.KvService".
  std::string service_name;
  int receive_bytes_max = 0;
  // Sets what only this server has.
  std::function<void(grpc::ServerBuilder&)> configure;
};

class UnixServer {
 public:
  // Serves when it returns, but reports NOT_SERVING to health checks until SetServing.
  static absl::StatusOr<std::unique_ptr<UnixServer>> Start(UnixServerOptions options,
                                                           grpc::Service* service);
  // As Shutdown without waiting.
  ~UnixServer();
  UnixServer(const UnixServer&) = delete;
  UnixServer& operator=(const UnixServer&) = delete;

  // What the health service answers, for the server and for the service.
  void SetServing(bool serving);
  // No new calls; waits for calls in flight, at most `time_max`, then cancels them. Removes the
  // socket. The last call.
  void Shutdown(std::chrono::milliseconds time_max);

 private:
  explicit UnixServer(UnixServerOptions options) : options_(std::move(options)) {}
  absl::Status Listen(grpc::Service* service);

  const UnixServerOptions options_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<UnixAcceptor> acceptor_;
};

}  // namespace cairn::rpc
