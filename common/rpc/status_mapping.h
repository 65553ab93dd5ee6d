// The one mapping between absl::Status and grpc::Status. The canonical codes are the same numbers;
// messages pass in both directions, cut to what fits into gRPC's trailing metadata. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace cairn::rpc {

// gRPC refuses trailers above 8 KiB, and a message grows up to threefold when it is escaped.
inline constexpr std::size_t kStatusMessageBytesMax = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// For status codes in message fields: UNKNOWN for a number that no code has, and for 0 (a failure
// cannot be OK).
absl::StatusCode FailureCodeFromNumber(int number);

// Fits a proto string: at most kStatusMessageBytesMax bytes, and '?' for every byte that is not
// ASCII if the whole is not valid UTF-8.
std::string CleanMessage(std::string_view message);

}  // namespace cairn::rpc
