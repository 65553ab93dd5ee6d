// FiniteCheck: looks for NaN and infinity in the weights of a tensor. One such weight makes every
// answer of the model meaningless, without an error anywhere.
//
// Threading:  CheckRows may run on several threads at once; ask for the status when they are done.
// Ownership:  borrows the tensor.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "common/base/status.h"
#include "compute-node/kernels/dequantize.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

class FiniteCheck {
 public:
  // REQUIRES: `type` is the tensor's.
  FiniteCheck(const GgufTensor& tensor, WeightType type) : tensor_(tensor), type_(type) {}

  void CheckRows(std::int64_t first_row, std::int64_t row_count);
  // INVALID_ARGUMENT that names the tensor and the first such weight of all rows that were checked,
  // whatever the order.
  absl::Status status() const;

 private:
  static constexpr std::int64_t kNoRow = std::numeric_limits<std::int64_t>::max();

  const std::byte* RowAt(std::int64_t row) const {
    return tensor_.data.data() + row * tensor_.row_bytes();
  }

  const GgufTensor& tensor_;
  const WeightType type_;
  std::atomic<std::int64_t> bad_row_{kNoRow};
};

}  // namespace cairn::compute
