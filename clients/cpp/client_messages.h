// Between what CairnClient's callers see and the protocol's messages.
//
// Threading:  pure functions, but for the callbacks of `options`.
#pragma once

#include "cairn/compute/v1/inference.pb.h"
#include "clients/cpp/cairn_client.h"

namespace cairn {

namespace v1 = ::cairn::compute::v1;

v1::GenerateRequest ToProto(const GenerateOptions& options);

ConversationInfo FromProto(const v1::Conversation& conversation);
GenerationStatus FromProto(const v1::Generation& generation);

// Enums have the protocol's values in its order, without the first, "unspecified". What this
// version does not know is taken for the last.
template <typename Enum>
Enum EnumFromProto(int value, Enum last) {
  const bool is_known = value >= 1 && value <= static_cast<int>(last) + 1;
  return is_known ? static_cast<Enum>(value - 1) : last;
}

// Adds an event to `result` and calls the callback that waits for it. INTERNAL for what no daemon
// of this version sends.
absl::Status HandleEvent(const GenerateOptions& options, const v1::GenerateEvent& event,
                         GenerateResult& result);

}  // namespace cairn
