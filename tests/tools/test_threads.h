// How many threads tests compute on where that is nothing to what they look at: what a model gives
// does not depend on it.
#pragma once

namespace cairn::test {

// ThreadSanitizer needs two to see anything. Elsewhere a second one would wait for the first most
// of the time, and take a processor from the tests beside.
#ifdef CAIRN_THREAD_SANITIZED
inline constexpr int kThreads = 2;
#else
inline constexpr int kThreads = 1;
#endif

}  // namespace cairn::test
