#include "compute-node/kernels/matmul.h"

#include <algorithm>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/matmul.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "compute-node/kernels/matmul-inl.h"

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(ComputePanel);

namespace {

// Work for one index of a loop: enough that handing it out costs nothing, little enough that a slow
// thread does not keep the others waiting at the end.
constexpr std::int64_t kIndexBytes = 96LL * 1024;

std::int64_t PanelsPerIndex(const PackedMatrix& weights) {
  const std::int64_t panel_bytes = PanelBytes(weights.type, weights.column_count);
  return std::max<std::int64_t>(1, kIndexBytes / std::max<std::int64_t>(1, panel_bytes));
}

std::int64_t IndexCount(const PackedMatrix& weights) {
  const std::int64_t panels = PanelsPerIndex(weights);
  return (weights.panel_count() + panels - 1) / panels;
}

// The panels [first_panel, last_panel) of one job.
void MatMulPanels(const ActivationRows& x, const MatMulJob& job, std::int64_t first_panel,
                  std::int64_t last_panel) {
  CAIRN_CHECK_EQ(job.weights.column_count, x.column_count);
  CAIRN_CHECK(IsQuantised(job.weights.type) ? x.blocks != nullptr : x.values != nullptr);
  CAIRN_CHECK_LE(last_panel, job.weights.panel_count());
  for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
    HWY_DYNAMIC_DISPATCH(ComputePanel)(x, job, panel);
  }
}

}  // namespace

void MatMul(ThreadPool& pool, const ActivationRows& x, std::span<const MatMulJob> jobs) {
  std::int64_t index_count = 0;
  for (const MatMulJob& job : jobs) {
    index_count += IndexCount(job.weights);
  }
  pool.ParallelFor(index_count, [&](std::int64_t index) {
    for (const MatMulJob& job : jobs) {
      const std::int64_t job_index_count = IndexCount(job.weights);
      if (index < job_index_count) {
        const std::int64_t panels = PanelsPerIndex(job.weights);
        const std::int64_t first = index * panels;
        MatMulPanels(x, job, first, std::min(first + panels, job.weights.panel_count()));
        return;
      }
      index -= job_index_count;
    }
  });
}

}  // namespace cairn::compute
#endif
