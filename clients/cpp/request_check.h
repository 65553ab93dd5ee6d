// What the client refuses before it sends anything, because protobuf's and gRPC's own words would
// not help: texts that are not UTF-8, requests above the daemon's message limit.
//
// Threading:  pure functions.
// Errors:     INVALID_ARGUMENT saying what to do.
#pragma once

#include <cstdint>
#include <string_view>

#include "clients/cpp/cairn_client.h"
#include "common/base/status.h"

namespace cairn {

// The daemon's limit for a message, with room for what goes with a prompt.
inline constexpr std::int64_t kRequestBytesMax = kPromptBytesMax + (std::int64_t{1} << 20);

// `what` names the text in the message: "the prompt", "--label".
absl::Status CheckUtf8(std::string_view what, std::string_view text);

// UTF-8 of at most kPromptBytesMax bytes.
absl::Status CheckPrompt(std::string_view what, std::string_view text);

// All texts of a request.
absl::Status CheckTexts(const GenerateOptions& options);

// The size of a message as it is sent.
absl::Status CheckRequestBytes(std::int64_t bytes);

}  // namespace cairn
