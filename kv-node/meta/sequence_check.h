// Looks at the metadata's files and changes no byte of them: whether they are those that the extent
// file was last used with, before they are opened for writing; and for tools, all that is in them.
#pragma once

#include <cstdint>
#include <memory>
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

// The metadata of a store that no process has open for writing.
struct MetaLook {
  std::unique_ptr<MetaReader> reader;
  std::uint64_t latest_sequence = 0;
};
// Takes memory for the rows of the log, which a running store keeps below four times its memtables,
// and for the block cache.
//
// Errors:     NOT_FOUND no metadata there; DATA_LOSS damaged; those of CheckSequence.
absl::StatusOr<MetaLook> LookAtMetadata(const MetaOptions& options);

}  // namespace cairn::kv
