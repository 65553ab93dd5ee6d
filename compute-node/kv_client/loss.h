// Which errors of talking with a KV node say that it is away, so that trying again can help.
//
// Threading:  pure functions.
#pragma once

#include "common/base/status.h"

namespace cairn::compute {

// Of the end of a call: the node is away or was restarted.
inline bool IsLoss(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:  // a restarted daemon knows no older token
    case absl::StatusCode::kCancelled:        // a daemon that ends its calls
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

// Of an attempt to connect.
inline bool IsAway(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:     // no such path can exist
    case absl::StatusCode::kPermissionDenied:    // a mode
    case absl::StatusCode::kFailedPrecondition:  // another protocol
      return false;
    default:
      return !status.ok();
  }
}

}  // namespace cairn::compute
