// Checks of changing operations that need the session's layout and rows only.
//
// Threading:  functions of their arguments only.
// Errors:     INVALID_ARGUMENT.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {

// The layer and head that an operation names, if it names anything in them or not.
absl::Status CheckPlace(const EntryLayout& layout, const ChangingOperation& operation);
// That entries at these positions have so many bytes.
absl::Status CheckEntries(const EntryLayout& layout, std::int32_t layer, std::int32_t head,
                          const Positions& positions, std::int64_t bytes);
absl::Status CheckAppend(const SessionState& state, const Append& op);
absl::Status CheckCarried(const EntryLayout& layout, const StageCarried& op);

}  // namespace cairn::kv
