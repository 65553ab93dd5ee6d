// Errors are absl::Status. This header adds what Debian's absl lacks: propagation macros, formatted
// constructors, and the one mapping from errno. Messages say operation, object and numbers: "read
// page 812: 4096 bytes at offset 65536: EIO".
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

namespace cairn {

// Debian's absl::string_view is not std::string_view and fmt cannot print it.
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }
inline std::string Message(const absl::Status& status) {
  return std::string(ToStd(status.message()));
}

// The status of a failed system call, with the code a caller can act on: ENOENT is NOT_FOUND,
// ENOSPC RESOURCE_EXHAUSTED, EACCES PERMISSION_DENIED, EAGAIN UNAVAILABLE, others INTERNAL, EIO
// too: a disk that does not answer may answer later, and has lost nothing as far as is known.
// `what` names operation and object.
absl::Status ErrnoStatus(int error_number, std::string_view what);

// What an errno means to whoever reads of it: what the system calls it.
std::string ErrnoText(int error_number);
// What to do about it, behind a colon, where that is the same wherever it happens; else empty.
std::string_view ErrnoCure(int error_number);

// The same status with `prefix: ` before its message.
absl::Status Annotate(const absl::Status& status, std::string_view prefix);

#define CAIRN_STATUS_FACTORY(name, code)                                               \
  template <typename... Args>                                                          \
  absl::Status name(fmt::format_string<Args...> format, Args&&... args) {              \
    return {absl::StatusCode::code, fmt::format(format, std::forward<Args>(args)...)}; \
  }
CAIRN_STATUS_FACTORY(InvalidArgument, kInvalidArgument)
CAIRN_STATUS_FACTORY(NotFound, kNotFound)
CAIRN_STATUS_FACTORY(AlreadyExists, kAlreadyExists)
CAIRN_STATUS_FACTORY(FailedPrecondition, kFailedPrecondition)
CAIRN_STATUS_FACTORY(ResourceExhausted, kResourceExhausted)
CAIRN_STATUS_FACTORY(Unavailable, kUnavailable)
CAIRN_STATUS_FACTORY(Unimplemented, kUnimplemented)
CAIRN_STATUS_FACTORY(DataLoss, kDataLoss)
CAIRN_STATUS_FACTORY(Internal, kInternal)
CAIRN_STATUS_FACTORY(Cancelled, kCancelled)
CAIRN_STATUS_FACTORY(DeadlineExceeded, kDeadlineExceeded)
CAIRN_STATUS_FACTORY(Aborted, kAborted)
CAIRN_STATUS_FACTORY(PermissionDenied, kPermissionDenied)
CAIRN_STATUS_FACTORY(Unauthenticated, kUnauthenticated)
#undef CAIRN_STATUS_FACTORY

}  // namespace cairn

#define CAIRN_RETURN_IF_ERROR(expression)     \
  do {                                        \
    absl::Status cairn_status = (expression); \
    if (!cairn_status.ok()) {                 \
      return cairn_status;                    \
    }                                         \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)
#define CAIRN_ASSIGN_OR_RETURN(target, expression) \
  CAIRN_ASSIGN_OR_RETURN_IMPL(CAIRN_CONCAT(cairn_statusor_, __LINE__), target, expression)
#define CAIRN_ASSIGN_OR_RETURN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) {                                           \
    return std::move(temporary).status();                          \
  }                                                                \
  target = std::move(temporary).value()
// NOLINTEND(bugprone-macro-parentheses)
