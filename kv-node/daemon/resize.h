// Makes the extent file of a store as large as the configuration says, at a start, before anybody
// uses it. Growing adds free pages. Shrinking moves what lies behind the new end to free pages in
// front of it. A crash or a refusal at any moment leaves a whole store of the old size or of the
// new one, and the next start goes on.
//
// Threading:  one thread; nobody else uses the store.
// Blocking:   as long as the bytes take that are written.
// Errors:     RESOURCE_EXHAUSTED the disk has no room to grow, or what is stored does not fit into
//             the smaller file: the message says what would; those of the disk and the metadata;
//             those of StartProgress.
#pragma once

#include "common/base/status.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/start_progress.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

absl::Status ResizeStore(ExtentFile& file, MetaStore& meta, const KvNodeConfig& config,
                         const StartProgress& progress);

}  // namespace cairn::kv
