// How many files a daemon may have open, and how many of them its clients may take. One that has no
// descriptor left for itself cannot store or fetch, and gRPC then ends calls that are under way.
//
// Threading:  any thread.
// Errors:     RESOURCE_EXHAUSTED where a process may open too few.
#pragma once

#include "common/base/status.h"

namespace cairn {

// More than a daemon ever needs; less than what makes walks over all descriptors slow.
inline constexpr long kOpenFilesMax = 65536;
// What a daemon may need itself: up to 253 pieces of shared memory, 64 files of the metadata,
// threads that wait, calls to the other tier. It is some 30 at rest.
inline constexpr long kOpenFilesReserved = 400;
// With fewer it does not start.
inline constexpr long kOpenFilesMin = 512;

// Raises the soft limit to the hard one, or to kOpenFilesMax.
absl::Status RaiseOpenFilesLimit();

// Whether as many descriptors as are reserved would be left behind one more. To be asked before a
// connection is accepted, where the answer no is treated as if there were no descriptor.
bool IsDescriptorLeftForClient();

}  // namespace cairn
