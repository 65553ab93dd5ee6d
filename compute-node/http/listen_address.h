// The address that the HTTP endpoint listens on: "127.0.0.1:8080", "[::1]:8080" or
// "localhost:8080", which is 127.0.0.1. Port 0 lets the system choose.
//
// Loopback only: the endpoint has no encryption, and at most one key for everybody. Who wants to
// reach it from elsewhere puts a proxy or an SSH tunnel in front, which has both.
//
// Threading:  pure functions.
// Errors:     INVALID_ARGUMENT saying what is wrong and what to write instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace cairn::compute {

struct ListenAddress {
  std::string host;  // numeric, without brackets
  bool is_v6 = false;
  std::uint16_t port = 0;

  std::string ToText() const;
};

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// Whether a request's Host header names this machine's loopback. Browsers let any web page send
// requests to a name that its owner points at 127.0.0.1; such a request says the page's own name
// here. The port says nothing more, and is another one at the far end of an SSH tunnel.
bool IsLoopbackHost(std::string_view header);

}  // namespace cairn::compute
