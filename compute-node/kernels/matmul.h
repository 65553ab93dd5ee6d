// Matrix products out = x * W^T of activations (token rows) with packed weights.
//
// Determinism: an output depends only on its token's row and its weight row: not on the number of
// tokens in the call, the thread count or the place of the row, bit for bit. Each sum runs over the
// columns in one fixed order (32 columns at a time for quantised weights; four interleaved partial
// sums for float weights).
//
// Accuracy:   relative error of a few 1e-6 against exact products, for every weight type.
#pragma once

#include <cstdint>
#include <span>

#include "compute-node/kernels/activations.h"
#include "compute-node/kernels/packed_matrix.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

// Rows of activations in both forms; the one that the weights need must be there.
struct ActivationRows {
  std::int64_t token_count = 0;
  std::int64_t column_count = 0;
  const float* values = nullptr;            // (token, column), for float weights
  const ActivationBlock* blocks = nullptr;  // (token, column / 32), for quantised weights
};

// One product: out[token * out_stride + row] = x[token] . W[row] (+ bias[row] if bias is not null).
struct MatMulJob {
  PackedMatrix weights;
  const float* bias = nullptr;
  float* out = nullptr;
  std::int64_t out_stride = 0;  // in floats
};

// Computes all jobs, which share the activations, in one fork-join loop.
// REQUIRES: weights.column_count == x.column_count for every job.
void MatMul(ThreadPool& pool, const ActivationRows& x, std::span<const MatMulJob> jobs);

}  // namespace cairn::compute
