// Errors as OpenAI's API answers them: {"error": {"message", "type", "param", "code"}} with an HTTP
// status.
//
// Inside they are absl::Status; what the form has beside a message is attached to it.
//
// Threading:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "compute-node/http/http_types.h"

namespace cairn::compute {

// When to try again after 429 and 503.
inline constexpr int kRetryAfterSeconds = 2;

// INVALID_ARGUMENT about a field of the request.
absl::Status FieldError(std::string_view field, std::string_view message);
// The error with OpenAI's code for it, which clients compare: "context_length_exceeded".
absl::Status WithApiCode(absl::Status status, std::string_view code);

// `status` is not OK. INVALID_ARGUMENT and FAILED_PRECONDITION are 400, UNAUTHENTICATED 401,
// PERMISSION_DENIED 403, NOT_FOUND 404, OUT_OF_RANGE 413, RESOURCE_EXHAUSTED 507, UNAVAILABLE 503,
// DEADLINE_EXCEEDED 504, others 500.
HttpReply ErrorReply(const absl::Status& status);
// For what only HTTP has a number for, as 405, 413 or 429.
HttpReply ErrorReply(int http_status, const absl::Status& status);
// The JSON alone, for an error in the middle of a stream.
std::string ErrorJson(const absl::Status& status);

}  // namespace cairn::compute
