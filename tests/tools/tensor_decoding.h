// Decodes the weights of GGUF tensors one value at a time, exactly and in float64, as the format
// defines them: the reference for the encoders here and for compute-node, with which it shares no
// code. It trusts its input.
//
// Threading:  pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "tests/tools/tensor_encoding.h"

namespace cairn::test {

// Value `index` of the values encoded at `data`. REQUIRES: scales are finite.
double DecodedValue(TensorType type, std::string_view data, size_t index);

}  // namespace cairn::test
