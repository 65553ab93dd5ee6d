#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cairn::internal {

void CheckFailed(const char* file, int line, const char* expression, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expression,
               detail.empty() ? "" : ": ", detail.c_str());
  std::abort();
}

}  // namespace cairn::internal
