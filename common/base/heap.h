// The process's heap.
//
// Threading:  safe from any thread.
#pragma once

#include <malloc.h>

namespace cairn {

// Gives pages of freed memory back to the system. malloc alone does so at the ends of its heaps
// only, so that what a long conversation took would stay below what came later. Takes 1 to 10 ms
// for a heap of 10 to 100 MB, in which whoever allocates waits: for after something large was
// freed.
inline void ReturnFreedMemory() {
  // Whether there was anything does not matter.
  static_cast<void>(malloc_trim(0));
}

}  // namespace cairn
