// A daemon that makes its store, or moves it, serves nobody for minutes. StartingMark tells those
// who wait for its socket that it is on its way: a locked file beside the socket, which the kernel
// unlocks when the process dies.
//
// Threading:  one thread.
#pragma once

#include <string>

#include "common/rpc/unix_socket.h"

namespace cairn::rpc {

inline constexpr char kStartingSuffix[] = ".starting";

class StartingMark {
 public:
  // That the mark cannot be made is no reason not to start: others give up sooner.
  explicit StartingMark(const std::string& socket_path);
  ~StartingMark();
  StartingMark(const StartingMark&) = delete;
  StartingMark& operator=(const StartingMark&) = delete;

 private:
  const std::string path_;
  UniqueFd file_;
};

// Whether a process is about to serve the socket.
bool IsStarting(const std::string& socket_path);

}  // namespace cairn::rpc
