// WeightsPacker puts the matrices of a model, as its loader has found and checked them, one behind
// the other as the product kernels read them: in memory, or in a file of a cache folder
// (packed_file.h), from which they are mapped. Every weight that it reads is looked at for NaN and
// infinity. Pages of the model's file are dropped as they are done.
//
// Threading:  one thread calls it; it computes on the pool's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"
#include "compute-node/kernels/packed_matrix.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/forward/packed_file.h"
#include "compute-node/model/forward/query_sums.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

// A matrix that is still to be packed: rows of a tensor, and where the packed view goes. With
// `sums` their sums (query_sums.h) instead.
struct PackTask {
  const GgufTensor* tensor;
  WeightType type;
  std::int64_t first_row;
  std::int64_t row_count;
  PackedMatrix* target;
  std::optional<QuerySumShape> sums{};

  WeightType packed_type() const { return sums ? QuerySumType(type) : type; }
  std::int64_t packed_rows() const { return sums ? row_count / sums->group_size : row_count; }
  std::int64_t packed_bytes() const {
    return PackedBytes(packed_type(), packed_rows(), tensor->row_length());
  }
  void PackOne(std::int64_t panel, std::byte* to) const;
};

// Of all their packed matrices, in bytes.
std::int64_t PackedTotal(std::span<const PackTask> tasks);

class WeightsPacker {
 public:
  // Borrows all. Nothing is packed before Load.
  WeightsPacker(const GgufFile& file, std::span<const PackTask> tasks, ThreadPool& pool,
                const PackProgress& progress)
      : file_(file), tasks_(tasks), pool_(pool), progress_(progress) {}

  // Has the weights of a tensor looked at that no task packs.
  void CheckToo(const GgufTensor& tensor, WeightType type) {
    checked_ = &tensor;
    checked_type_ = type;
  }

  // The packed matrices in the order of the tasks. INVALID_ARGUMENT names a tensor with NaN or
  // infinity in it; FAILED_PRECONDITION the model's file was written to meanwhile. A cache that
  // cannot be used is logged and done without.
  absl::StatusOr<AlignedMapping> Load(const PackedCache& cache);

 private:
  absl::StatusOr<AlignedMapping> MapCached(const PackedCache& cache);
  absl::Status CheckUnpacked() const;
  template <typename Room, typename Packed>
  absl::Status PackAll(const Room& room, const Packed& packed);
  std::int64_t SourceTotal() const;
  std::uint32_t PlanCrc() const;

  const GgufFile& file_;
  const std::span<const PackTask> tasks_;
  ThreadPool& pool_;
  const PackProgress& progress_;
  const GgufTensor* checked_ = nullptr;
  WeightType checked_type_ = WeightType::kF32;
};

}  // namespace cairn::compute
