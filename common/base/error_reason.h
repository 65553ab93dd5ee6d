// Why something failed, for callers that do something about it: kept beside the status and its
// text, through Annotate and in one process only.
//
// Threading:  safe from any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace cairn {

enum class ErrorReason : std::uint8_t {
  kNone,             // that anybody tells apart
  kContextTooShort,  // for the prompt and what the conversation holds
};

// REQUIRES: not OK.
absl::Status WithReason(absl::Status status, ErrorReason reason);
ErrorReason ReasonOf(const absl::Status& status);

// The same error in other words.
absl::Status Reworded(const absl::Status& status, std::string_view text);

}  // namespace cairn
