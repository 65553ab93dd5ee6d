// HandshakeServer gives tokens to processes that may open the socket: whoever connects is looked at
// with SO_PEERCRED and gets one message (common/rpc/handshake.h): the token of its app and the
// descriptors of the app's shared memory. Then the connection is closed. It reads
// nothing, so a peer cannot keep it waiting: connections are served one at a time, the ones behind
// wait in the kernel's bounded backlog.
//
// Threading:  a thread of its own, "kv-handshake"; the destructor stops and joins it and removes
//             the socket.
// Ownership:  borrows the registry and the engine, which outlive it.
// Errors:     of Start: ALREADY_EXISTS the socket is taken; others of the file system.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/log/seldom.h"
#include "common/rpc/unix_socket.h"
#include "kv-node/engine/engine.h"
#include "kv-node/service/token_registry.h"

namespace cairn::kv {

class HandshakeServer {
 public:
  static absl::StatusOr<std::unique_ptr<HandshakeServer>> Start(std::string socket_path,
                                                                mode_t mode,
                                                                TokenRegistry* registry,
                                                                const Engine* engine);
  ~HandshakeServer();
  HandshakeServer(const HandshakeServer&) = delete;
  HandshakeServer& operator=(const HandshakeServer&) = delete;

 private:
  HandshakeServer(std::string socket_path, UniqueFd listener, UniqueFd stop,
                  TokenRegistry* registry, const Engine* engine);
  void Run();
  // False when the process has no descriptor left for another connection.
  bool AcceptOne();
  void Answer(const UniqueFd& connection);

  const std::string socket_path_;
  const UniqueFd listener_;
  const UniqueFd stop_;  // an eventfd
  TokenRegistry* const registry_;
  const Engine* const engine_;
  Seldom tell_no_descriptors_;        // the thread's
  bool told_no_descriptors_ = false;  // the thread's: and not yet that there are some
  std::thread thread_;
};

}  // namespace cairn::kv
