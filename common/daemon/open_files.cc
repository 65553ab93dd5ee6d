#include "common/daemon/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace cairn {

void RaiseOpenFilesLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kOpenFilesMax);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  // Not more than allowed is asked for; without it the daemon has what it had.
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace cairn
