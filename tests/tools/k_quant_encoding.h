// Encoders of the blocks of 256 values. What is where in a block: tensor_decoding.cc. The rounding
// is the plain one of each 16 or 32 values for themselves, without a search for better scales.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace cairn::test {

// Each writes one block; `out` has room for it.
void EncodeQ2KBlock(std::span<const float> x, uint8_t* out);
void EncodeQ3KBlock(std::span<const float> x, uint8_t* out);
void EncodeQ4KBlock(std::span<const float> x, uint8_t* out);
void EncodeQ5KBlock(std::span<const float> x, uint8_t* out);
void EncodeQ6KBlock(std::span<const float> x, uint8_t* out);

}  // namespace cairn::test
