// Encodes rows of float weights as GGUF tensor blocks, of every type that Cairn computes with.
// Deliberately shares no code with compute-node, which decodes these blocks and is what the tests
// check.
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
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ50 = 6,
  kQ51 = 7,
  kQ80 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBf16 = 30,
};

struct TensorTypeInfo {
  int64_t block_values = 1;
  int64_t block_bytes = 4;
};
TensorTypeInfo InfoOf(TensorType type);

// "f32", "q4_0", "iq4_nl", "q4_k": the format's names in small letters. INVALID_ARGUMENT for
// another name.
absl::StatusOr<TensorType> TensorTypeFromName(std::string_view name);

// IEEE half precision, round to nearest even.
uint16_t HalfFromFloat(float value);
float FloatFromHalf(uint16_t half);

// Appends the encoding of `values` to `out`. REQUIRES: values.size() is a multiple of the type's
// block_values.
void EncodeValues(std::span<const float> values, TensorType type, std::vector<uint8_t>& out);

}  // namespace cairn::test
