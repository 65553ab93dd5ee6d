#include "common/base/heap.h"

#include <malloc.h>

namespace cairn {

void ReturnFreedMemory() {
  // Whether there was anything does not matter.
  static_cast<void>(malloc_trim(0));
}

}  // namespace cairn
