// Frees the end of an extent file that is to become shorter: extents that reach behind the new end
// are copied, to the byte, to free pages in front of it, and the rows that name them are written
// anew. Checksums stay: they are seeded with part ids and page numbers in the part, not with
// places.
//
// In rounds: copy, flush, then one batch with the rows and the allocation records. So a crash, or
// an error, leaves each extent at its old place or at its new one, and a store that is whole.
//
// Threading:  one thread, which becomes the device's owner; nobody else uses the store.
// Blocking:   as long as copying takes.
// Limits:     kMoveRoundPagesMax pages a round (a longer extent is a round of its own), of which
//             the rows are in memory, with kMoveBufferBytes of pages.
// Errors:     DATA_LOSS the metadata is damaged, or the device cannot read a page; those of a
//             write or a commit; what `progress` answers. What was moved before stays moved.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/status.h"
#include "kv-node/device/device.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

inline constexpr std::int64_t kMoveRoundPagesMax = 8192;
inline constexpr std::int64_t kMoveBufferBytes = std::int64_t{4} << 20;

struct MoveOptions {
  std::int64_t page_count = 0;  // of the extent file
  std::int64_t end = 0;         // no page from here on is to be in use
  // Optional; an error ends the work.
  std::function<absl::Status(std::int64_t done_bytes, std::int64_t total_bytes)> progress = nullptr;
};

struct MoveResult {
  std::int64_t moved_bytes = 0;
  std::int64_t used_page_count = 0;
  // The pages from here on are free. More than MoveOptions::end: what is left there found no free
  // range that is long enough. Nothing is moved where all pages in use do not fit.
  std::int64_t free_from = 0;
};

absl::StatusOr<MoveResult> MoveExtentsBelow(MetaStore& meta, Device& device,
                                            const MoveOptions& options);

}  // namespace cairn::kv
