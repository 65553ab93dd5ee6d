// What the commands of cairn-kv-util do with the directory of a stopped store.
//
// Threading:  one thread.
// Blocking:   file I/O; waits up to the lock's time for a process that is just ending.
// Errors:     the tool could not run: NOT_FOUND no store there; UNAVAILABLE a daemon uses it;
//             others from the file system. What is wrong with the store itself is a finding.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

struct ToolOptions {
  std::string directory;
  // How long to wait for a process that ends; see ExtentFileOptions.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(3);
  // Of a repair: gives up what lies in pages that the disk cannot read. Otherwise they are left:
  // the disk may read them another time.
  bool drop_unreadable = false;
};

// Of the metadata of the store that `file`, in `directory`, is the extent file of.
MetaOptions MetaOptionsOf(const std::string& directory, const ExtentFile& file);

// Takes one line of output, without its end.
using LineSink = std::function<void(const std::string& line)>;

// Findings, then a summary. Changes no byte of the store. Returns the number of findings.
absl::StatusOr<std::int64_t> VerifyStore(const ToolOptions& options, const LineSink& print);

enum class RepairMode : std::uint8_t { kRepair, kDryRun };

// Findings, what is lost and changed because of them, and the findings that are left; a store
// without findings is not changed by a byte. Returns the number of those that are left; of a dry
// run, of all. A store whose two superblocks are damaged, or whose metadata is missing, not its
// own, or not readable in whole, is not repaired: all findings are left.
absl::StatusOr<std::int64_t> RepairStore(const ToolOptions& options, RepairMode mode,
                                         const LineSink& print);

}  // namespace cairn::kv
