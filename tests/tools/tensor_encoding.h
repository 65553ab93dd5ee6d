// Encodes rows of float weights as GGUF tensor blocks. Only what the model maker writes: F32, F16,
// BF16, Q8_0, Q4_0, Q6_K. Deliberately shares no code with compute-node, which decodes these blocks
// and is what the tests check.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace cairn::test {

// Values are the type numbers of the GGUF file format.
enum class TensorType : uint32_t { kF32 = 0, kF16 = 1, kQ40 = 2, kQ80 = 8, kQ6K = 14, kBf16 = 30 };

struct TensorTypeInfo {
  int64_t block_values = 1;
  int64_t block_bytes = 4;
};
TensorTypeInfo InfoOf(TensorType type);

// "f32", "f16", "bf16", "q8_0", "q4_0", "q6_k". INVALID_ARGUMENT for another name.
absl::StatusOr<TensorType> TensorTypeFromName(std::string_view name);

// IEEE half precision, round to nearest even.
uint16_t HalfFromFloat(float value);
float FloatFromHalf(uint16_t half);

// Appends the encoding of `values` to `out`. REQUIRES: values.size() is a multiple of the type's
// block_values.
void EncodeValues(std::span<const float> values, TensorType type, std::vector<uint8_t>& out);

}  // namespace cairn::test
