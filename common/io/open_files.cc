#include "common/io/open_files.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace cairn {
namespace {

absl::StatusOr<rlimit> OpenFilesLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) return limit;
  return ErrnoStatus(errno, "look up the limit of open files");
}

}  // namespace

absl::Status RaiseOpenFilesLimit() {
  CAIRN_ASSIGN_OR_RETURN(rlimit limit, OpenFilesLimit());
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kOpenFilesMax);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    // Not more than allowed is asked for; without it the daemon has what it had.
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    CAIRN_ASSIGN_OR_RETURN(limit, OpenFilesLimit());
  }
  if (limit.rlim_cur >= static_cast<rlim_t>(kOpenFilesMin)) return absl::OkStatus();
  return ResourceExhausted(
      "this process may have {} files open and needs {}: raise the limit of open files (ulimit -n, "
      "or LimitNOFILE of the service)",
      limit.rlim_cur, kOpenFilesMin);
}

bool IsDescriptorLeftForClient() {
  const absl::StatusOr<rlimit> limit = OpenFilesLimit();
  if (!limit.ok()) return true;
  // A new descriptor has the lowest number that is free, so that those below it are taken.
  const int next = ::eventfd(0, EFD_CLOEXEC);
  if (next < 0) return false;
  ::close(next);
  return static_cast<rlim_t>(next) + kOpenFilesReserved < limit->rlim_cur;
}

}  // namespace cairn
