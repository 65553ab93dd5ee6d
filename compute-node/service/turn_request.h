// From the fields of a GenerateRequest to those of a TurnRequest: all but the prompt's text.
//
// Threading:  pure functions, but that a seed which is not given is a random one.
// Errors:     INVALID_ARGUMENT naming the field.
#pragma once

#include <cstdint>
#include <vector>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"
#include "compute-node/session/generation.h"

namespace cairn::compute {

inline constexpr int kStopTextsMax = 16;
inline constexpr std::int64_t kStopTextBytesMax = 256;
inline constexpr int kStopTokensMax = 256;
inline constexpr std::int64_t kTokensMaxDefault = 256;

// Sampling, limits, stop texts, log probabilities, how the prompt is computed.
absl::Status ReadTurnOptions(const v1::GenerateRequest& request, std::int64_t vocab_size,
                             TurnRequest& turn);

// What a request asks of the policy. Whether that is possible shows on the choice that it is on.
PolicyRequest ReadRetrieval(const v1::Retrieval& retrieval);

// A prompt of token ids.
absl::Status ReadTokens(const v1::TokenIds& tokens, std::int64_t vocab_size,
                        std::vector<std::int32_t>& prompt);

}  // namespace cairn::compute
