// Whether the metadata's files are those that the extent file was last used with, found out before
// they are opened for writing.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

inline constexpr std::string_view kStoreIdKey = "store_id";  // in family config

// FAILED_PRECONDITION: an extent file with `store_id` beside metadata with another one.
absl::Status OtherStore(std::string_view store_id, std::string_view metadata_store_id,
                        std::string_view extent_path);

// OK when `options` asks for no sequence number. Reads the whole log, and changes nothing.
//
// Errors:     DATA_LOSS missing, damaged, or ending before options.sequence_min;
//             FAILED_PRECONDITION of another store.
absl::Status CheckSequence(const MetaOptions& options);

}  // namespace cairn::kv
