#include "compute-node/http/api_error.h"

#include <absl/strings/cord.h>

#include "common/rpc/status_mapping.h"
#include "compute-node/http/json_reader.h"

namespace cairn::compute {
namespace {

constexpr const char* kParamPayload = "cairn.http/param";
constexpr const char* kCodePayload = "cairn.http/code";
constexpr int kServerErrorMin = 500;

OrderedJson PayloadOrNull(const absl::Status& status, const char* url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  if (!payload.has_value()) return nullptr;
  return std::string(*payload);
}

int ToHttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kOutOfRange:
      return 413;
    case absl::StatusCode::kResourceExhausted:
      return 507;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

const char* TypeOf(int http_status) {
  if (http_status == 401) return "authentication_error";
  if (http_status == 403) return "permission_error";
  if (http_status == 429) return "rate_limit_error";
  return http_status >= kServerErrorMin ? "server_error" : "invalid_request_error";
}

// Of what clients may want to tell from other errors, where the status says it all.
OrderedJson CodeOf(int http_status, const absl::Status& status) {
  return http_status == 507 ? "insufficient_storage" : PayloadOrNull(status, kCodePayload);
}

std::string ToJson(int http_status, const absl::Status& status) {
  const OrderedJson json = {{"error",
                             {{"message", Message(status).substr(0, rpc::kStatusMessageBytesMax)},
                              {"type", TypeOf(http_status)},
                              {"param", PayloadOrNull(status, kParamPayload)},
                              {"code", CodeOf(http_status, status)}}}};
  // A message may quote what the client sent, however long.
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

absl::Status FieldError(std::string_view field, std::string_view message) {
  absl::Status status = InvalidArgument("{}: {}", field, message);
  status.SetPayload(kParamPayload, absl::Cord(std::string(field)));
  return status;
}

absl::Status WithApiCode(absl::Status status, std::string_view code) {
  status.SetPayload(kCodePayload, absl::Cord(std::string(code)));
  return status;
}

HttpReply ErrorReply(const absl::Status& status) {
  return ErrorReply(ToHttpStatus(status.code()), status);
}

HttpReply ErrorReply(int http_status, const absl::Status& status) {
  HttpReply reply;
  reply.status = http_status;
  reply.body = ToJson(http_status, status);
  if (http_status == 429 || http_status == 503) {
    reply.headers.emplace_back("Retry-After", std::to_string(kRetryAfterSeconds));
  }
  if (http_status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

std::string ErrorJson(const absl::Status& status) {
  return ToJson(ToHttpStatus(status.code()), status);
}

}  // namespace cairn::compute
