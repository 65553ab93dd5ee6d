// One session of a store, or all, with what their segments take on flash.
//
// Threading:  runs on the metadata thread.
// Errors:     DATA_LOSS a row is damaged; of one session NOT_FOUND, also where it is another app's,
//             and FAILED_PRECONDITION another uid.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

// `attached` is not set.
absl::StatusOr<SessionInfo> LoadSessionInfo(MetaReader& reader, AppId app,
                                            const SessionRef& session, ListDetail detail);
// Those of the app, newest first.
absl::StatusOr<std::vector<SessionInfo>> LoadSessionInfos(MetaReader& reader, AppId app,
                                                          ListDetail detail);

}  // namespace cairn::kv
