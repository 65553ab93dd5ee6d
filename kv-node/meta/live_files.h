// What a database needs of its folder when it is opened again. Who has it open does not notice that
// some of it was deleted: the tables stay readable, and their rows are gone at the next start.
//
// Threading:  any thread.
// Blocking:   looks for some dozens of files.
#pragma once

#include <rocksdb/db.h>

#include "common/base/status.h"

namespace cairn::kv {

// INTERNAL: names the first table, log or list of tables that is not there.
absl::Status CheckLiveFiles(rocksdb::DB& db);

}  // namespace cairn::kv
