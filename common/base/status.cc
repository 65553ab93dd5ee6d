#include "common/base/status.h"

#include <cerrno>
#include <system_error>

#include "common/base/error_reason.h"

namespace cairn {
namespace {

absl::StatusCode CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EAGAIN:
    case EBUSY:
    case ECONNREFUSED:
      return absl::StatusCode::kUnavailable;
    case EINVAL:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  return {CodeOfErrno(error_number),
          fmt::format("{}: {}{}", what, ErrnoText(error_number), ErrnoCure(error_number))};
}

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

std::string_view ErrnoCure(int error_number) {
  switch (error_number) {
    case EMFILE:
      return ": raise the limit of open files of this process (ulimit -n, LimitNOFILE)";
    case ENFILE:
      return ": raise the limit of open files of this machine (fs.file-max)";
    default:
      return "";
  }
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  return Reworded(status, fmt::format("{}: {}", prefix, ToStd(status.message())));
}

}  // namespace cairn
