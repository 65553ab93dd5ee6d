#include "common/base/error_reason.h"

#include <optional>
#include <string>

#include <absl/strings/cord.h>

#include "common/base/check.h"

namespace cairn {
namespace {

constexpr char kReasonPayload[] = "cairn/reason";

}  // namespace

absl::Status WithReason(absl::Status status, ErrorReason reason) {
  CAIRN_CHECK(!status.ok());
  status.SetPayload(kReasonPayload, absl::Cord(std::string(1, static_cast<char>(reason))));
  return status;
}

ErrorReason ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  if (!payload.has_value() || payload->empty()) return ErrorReason::kNone;
  return static_cast<ErrorReason>((*payload)[0]);
}

absl::Status Reworded(const absl::Status& status, std::string_view text) {
  if (status.ok()) return status;
  absl::Status out(status.code(), {text.data(), text.size()});
  status.ForEachPayload(
      [&out](auto name, const absl::Cord& value) { out.SetPayload(name, value); });
  return out;
}

}  // namespace cairn
