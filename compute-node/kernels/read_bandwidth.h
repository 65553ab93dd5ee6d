// How fast this machine reads memory: what bounds the decoding of one sequence, which reads every
// weight once a token.
//
// Blocking:   for the time that is allowed, and as long as it takes to fill the buffer.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/status.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

struct ReadBandwidth {
  double bytes_per_second = 0;
  int thread_count = 0;
  std::int64_t buffer_bytes = 0;
};

// Twice the last-level cache, within bounds that every machine has memory and time for.
std::int64_t ReadProbeBufferBytes();

// With all threads of the pool, over a buffer in sections; the fastest section counts, because
// other processes only make one slower. At least three passes over the buffer; none begins when
// `time` has passed.
//
// Errors:     RESOURCE_EXHAUSTED when there is no memory for the buffer.
absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(ThreadPool& pool, std::int64_t buffer_bytes,
                                                   std::chrono::milliseconds time);

}  // namespace cairn::compute
