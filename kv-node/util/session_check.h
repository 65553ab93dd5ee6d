// The check of one session, through the engine's own loader: what it refuses when a session is
// opened, and the position rule that it asks of every checkpoint.
#pragma once

#include <memory>

#include "kv-node/layout/free_map.h"
#include "kv-node/util/store_check.h"

namespace cairn::kv {

// REQUIRES: the session's chain reaches a root. `pages` has the size of the extent file. Marks the
// session's entry as lost when it cannot be shown.
void CheckSession(const StoreView& store, SessionId session, const std::shared_ptr<FreeMap>& pages,
                  const FindingSink& sink, StoreSurvey& survey);

}  // namespace cairn::kv
