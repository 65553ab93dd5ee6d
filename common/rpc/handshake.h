// The one message of the handshake socket, from the KV node to whoever connects:
//
//   TOKEN\n
//   arena GRANULE_BYTES ID ID ...\n   with a descriptor for each id, in this order (SCM_RIGHTS)
//
// Who only wants the token reads one line and closes: the kernel drops the descriptors.
//
// Threading: pure functions on a socket.
// Blocking:  receiving waits at most the given time; sending never waits, a fresh socket's buffer
//            holds the message.
// Without descriptors to spare, the message comes without granules.
//
// Errors:    of receiving: DEADLINE_EXCEEDED, UNAVAILABLE the other side closed early,
//            INVALID_ARGUMENT a message of another form.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/unix_socket.h"

namespace cairn::rpc {

// Linux passes at most 253 descriptors in one message.
inline constexpr std::int64_t kHandshakeGranuleCountMax = 253;

struct HandshakeGranule {
  std::int32_t id = 0;
  UniqueFd fd;  // of a sealed memfd
};
struct HandshakeMessage {
  std::string token;
  std::int64_t granule_bytes = 0;
  std::vector<HandshakeGranule> granules;
};

// `descriptors` stay the caller's.
absl::Status SendHandshake(const UniqueFd& socket, const std::string& token,
                           std::int64_t granule_bytes, const std::vector<std::int32_t>& ids,
                           const std::vector<int>& descriptors);
absl::StatusOr<HandshakeMessage> ReceiveHandshake(const UniqueFd& socket,
                                                  std::chrono::milliseconds time_max);

}  // namespace cairn::rpc
