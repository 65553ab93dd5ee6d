#include "common/rpc/status_mapping.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace cairn::rpc {

std::string CleanMessage(std::string_view message) {
  std::string out(message.substr(0, Utf8WholeBytes(message, kStatusMessageBytesMax)));
  if (Utf8GoodBytes(out) == out.size()) return out;
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return out;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), CleanMessage(ToStd(status.message()))};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return {FailureCodeFromNumber(status.error_code()), status.error_message()};
}

absl::StatusCode FailureCodeFromNumber(int number) {
  constexpr int kFirst = static_cast<int>(absl::StatusCode::kCancelled);
  constexpr int kLast = static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (number < kFirst || number > kLast) return absl::StatusCode::kUnknown;
  return static_cast<absl::StatusCode>(number);
}

}  // namespace cairn::rpc
