// Lists the sessions of a store, with what their segments take on flash.
//
// Threading:  runs on the metadata thread.
// Errors:     DATA_LOSS a row is damaged.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

// Newest first. `attached` is not set.
absl::StatusOr<std::vector<SessionInfo>> LoadSessionInfos(MetaReader& reader, ListDetail detail);

}  // namespace cairn::kv
