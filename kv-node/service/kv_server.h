// KvServer serves an Engine on a Unix socket: KvService, the standard health service and
// reflection, and the handshake on a second socket (the path with ".handshake" behind it).
//
// Threading:  methods may be called from any thread, one at a time.
// Blocking:   Start binds sockets; Shutdown waits for calls up to its deadline.
// Ownership:  borrows the engine, which must outlive it: calls in flight end through the engine.
// Errors:     of Start: INVALID_ARGUMENT path too long; ALREADY_EXISTS the socket is taken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/rpc/unix_server.h"
#include "common/rpc/unix_socket.h"
#include "kv-node/engine/engine.h"
#include "kv-node/service/handshake_server.h"
#include "kv-node/service/kv_service.h"
#include "kv-node/service/node_identity.h"
#include "kv-node/service/token_registry.h"

namespace cairn::kv {

inline constexpr int kStreamsPerConnectionMax = 256;
// How long finished calls have to leave the sockets at a shutdown.
inline constexpr std::chrono::milliseconds kFlushTimeMax{100};

struct KvServerOptions {
  // Absolute.
  std::string socket_path;
  // Of both sockets: who may connect.
  mode_t socket_mode = rpc::kSocketModeDefault;
};

class KvServer {
 public:
  // Serves when it returns, but reports NOT_SERVING to health checks until SetServing.
  static absl::StatusOr<std::unique_ptr<KvServer>> Start(const KvServerOptions& options,
                                                         NodeIdentity identity, Engine* engine);
  // As Shutdown without waiting.
  ~KvServer();
  KvServer(const KvServer&) = delete;
  KvServer& operator=(const KvServer&) = delete;

  // What the health service answers, for the server and for cairn.kv.v1.KvService.
  void SetServing(bool serving);
  // Health NOT_SERVING, no new sessions and attachments; waits until clients that want to hear of a
  // stop have ended their streams, at most `time_max`.
  void Drain(std::chrono::milliseconds time_max);
  // Health NOT_SERVING, streams ended, no new calls; waits for calls in flight, at most `time_max`,
  // then cancels them.
  void Shutdown(std::chrono::milliseconds time_max);

 private:
  KvServer(NodeIdentity identity, Engine* engine);
  absl::Status Listen(const KvServerOptions& options);

  Engine* const engine_;
  TokenRegistry registry_;
  KvServiceImpl service_;
  std::unique_ptr<HandshakeServer> handshake_;
  std::unique_ptr<rpc::UnixServer> server_;
};

}  // namespace cairn::kv
