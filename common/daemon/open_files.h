// How many files a daemon may have open.
#pragma once

namespace cairn {

// More than a daemon ever needs; less than what makes walks over all descriptors slow.
inline constexpr long kOpenFilesMax = 65536;

// Raises the soft limit to the hard one, or to kOpenFilesMax.
void RaiseOpenFilesLimit();

}  // namespace cairn
