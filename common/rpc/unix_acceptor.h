// UnixAcceptor accepts connections on a Unix socket and hands them on, gRPC's instead of gRPC's own
// listener: that one never accepts again once the process had no descriptor left.
//
// A client of HTTP/2 speaks first, so a connection is handed on when its first bytes are there. Who
// says nothing costs a descriptor for kSilentTimeMax at most, and at most kSilentCountMax of them:
// then each new one takes the place of the oldest. While kConnectionCountMax of those handed on are
// open, others wait where the silent ones are.
//
// Threading:  a thread of its own, "rpc-accept", calls `take`; the destructor stops and joins it
//             and removes the socket.
// Ownership:  a connection is its taker's from the call on. Who closes it need not say so: a
//             descriptor is looked at before it counts as open.
// Errors:     of Start: ALREADY_EXISTS the socket is taken; others of the file system. Without
//             descriptors for clients it waits for some, and says so in the log.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/log/seldom.h"
#include "common/rpc/unix_socket.h"

namespace cairn::rpc {

inline constexpr int kSilentCountMax = 64;
inline constexpr int kConnectionCountMax = 256;
inline constexpr std::chrono::seconds kSilentTimeMax{10};

struct UnixAcceptorOptions {
  // Absolute.
  std::string socket_path = "";
  mode_t socket_mode = kSocketModeDefault;
  int silent_count_max = kSilentCountMax;
  int connection_count_max = kConnectionCountMax;
  std::chrono::milliseconds silent_time_max = kSilentTimeMax;
};

class UnixAcceptor {
 public:
  using Take = std::function<void(UniqueFd connection)>;

  static absl::StatusOr<std::unique_ptr<UnixAcceptor>> Start(UnixAcceptorOptions options,
                                                             Take take);
  ~UnixAcceptor();
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Silent {
    UniqueFd socket;
    Clock::time_point end;  // of its time
  };
  // A descriptor's number may be another file's later.
  struct Taken {
    int descriptor = -1;
    ino_t inode = 0;
  };

  UnixAcceptor(UnixAcceptorOptions options, UniqueFd listener, UniqueFd stop, Take take);
  void Run();
  // Waits until something is to be done. False: it is time to stop.
  bool Wait();
  void AcceptAll();
  // Not valid: errno says why; EMFILE also while only those of the daemon itself are left.
  UniqueFd AcceptOne();
  // `error` is why accept failed. False: it is no reason to wait.
  bool HandleError(int error);
  void HandOn();
  bool MayTake();
  void EndOldSilent();

  const UnixAcceptorOptions options_;
  const UniqueFd listener_;
  const UniqueFd stop_;  // an eventfd
  const Take take_;
  // The thread's own.
  std::deque<Silent> silent_;  // the oldest first
  std::vector<Taken> taken_;
  bool no_descriptors_ = false;  // the last time
  bool full_ = false;
  Seldom tell_no_descriptors_;
  bool told_no_descriptors_ = false;  // and not yet that there are some
  Seldom tell_full_;
  Seldom tell_silent_;
  std::thread thread_;
};

}  // namespace cairn::rpc
