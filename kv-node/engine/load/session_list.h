// One session of a store, or all, with what their segments take on flash.
//
// Threading:  runs on the metadata thread.
// Errors:     DATA_LOSS a row is damaged; of one session NOT_FOUND, and FAILED_PRECONDITION another
//             uid.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

// `attached` is not set.
absl::StatusOr<SessionInfo> LoadSessionInfo(MetaReader& reader, const SessionRef& session,
                                            ListDetail detail);
// Newest first.
absl::StatusOr<std::vector<SessionInfo>> LoadSessionInfos(MetaReader& reader, ListDetail detail);

}  // namespace cairn::kv
