// Asks the kernel whether this process may use io_uring. A child process asks, because a seccomp
// filter may answer with a signal that kills the caller.
//
// Threading:  any thread.
// Blocking:   for the life of the child, about a millisecond.
#pragma once

#include <string>

namespace cairn::kv {

struct UringProbe {
  bool available = false;
  std::string reason;  // of either answer, for the log
};

UringProbe ProbeUring();

}  // namespace cairn::kv
