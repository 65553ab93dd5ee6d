#include "common/base/fail_point.h"

#ifdef CAIRN_FAIL_POINTS
#include <cstdlib>

namespace cairn {

bool FailPoint(std::string_view name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in a test with a fail point changes it
  static const char* const broken = std::getenv("CAIRN_FAIL_POINT");
  return broken != nullptr && name == broken;
}

}  // namespace cairn
#endif
