// The superblock names a store and describes its extent file. Pages 0 and 1 of the file hold a copy
// each, with sequence numbers; an update overwrites the older copy, so that a torn write leaves the
// newer one whole. See docs/on-disk-format.md, "Superblock".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "common/base/status.h"
#include "kv-node/layout/free_map.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

inline constexpr int kSuperblockCopyCount = 2;
// The first page that holds data.
inline constexpr std::int64_t kFirstDataPage = kSuperblockCopyCount;
inline constexpr std::uint32_t kFormatVersion = 4;
// The oldest that this program reads; what it writes is of kFormatVersion. Version 1 has no index
// runs, 1 and 2 have no identity in session rows, and 1 to 3 no apps.
inline constexpr std::uint32_t kFormatVersionMin = 1;
inline constexpr std::int64_t kStorePageCountMin = 16;
inline constexpr std::int64_t kStorePageCountMax = std::int64_t{1} << 36;  // 256 TiB

// A random store id.
StoreId NewStoreId();
// 32 hexadecimal digits.
std::string FormatStoreId(const StoreId& id);

struct Superblock {
  std::uint64_t sequence = 0;  // copy `sequence % 2` holds it
  StoreId store_id = {};
  std::int64_t page_count = 0;  // of the whole file, superblock pages included
  std::int64_t create_time_unix_seconds = 0;
  // The metadata's sequence number (MetaStore::latest_sequence()) when it was last told: metadata
  // that ends before it is not what this extent file was used with. 0: not known.
  std::uint64_t metadata_sequence = 0;

  friend bool operator==(const Superblock&, const Superblock&) = default;
};

// The bytes of one copy, little-endian. The places of magic, format_version and crc32c are the same
// in every format version, so that a reader of any version can tell damage from a newer format.
struct SuperblockBytes {
  std::array<char, 8> magic;     // "CAIRNKV" and a zero byte
  std::uint32_t format_version;  // kFormatVersion
  std::uint32_t page_bytes;      // kPageBytes
  std::uint64_t sequence;
  StoreId store_id;
  std::int64_t page_count;
  std::int64_t create_time_unix_seconds;
  std::uint64_t metadata_sequence;
  std::array<std::uint8_t, 4028> reserved;  // zero
  std::uint32_t crc32c;                     // of all bytes before it
};
static_assert(sizeof(SuperblockBytes) == kPageBytes);
static_assert(offsetof(SuperblockBytes, format_version) == 8);
static_assert(offsetof(SuperblockBytes, page_bytes) == 12);
static_assert(offsetof(SuperblockBytes, sequence) == 16);
static_assert(offsetof(SuperblockBytes, store_id) == 24);
static_assert(offsetof(SuperblockBytes, page_count) == 40);
static_assert(offsetof(SuperblockBytes, create_time_unix_seconds) == 48);
static_assert(offsetof(SuperblockBytes, metadata_sequence) == 56);
static_assert(offsetof(SuperblockBytes, reserved) == 64);
static_assert(offsetof(SuperblockBytes, crc32c) == 4092);
static_assert(std::has_unique_object_representations_v<SuperblockBytes>);

SuperblockBytes EncodeSuperblock(const Superblock& superblock);

// `page` is kPageBytes long, `copy_index` says which page it was read from.
//
// Errors:     DATA_LOSS not a superblock or damaged; FAILED_PRECONDITION intact, but of a format
//             that this program does not read.
absl::StatusOr<Superblock> DecodeSuperblock(std::span<const std::byte> page, int copy_index);

struct SuperblockChoice {
  Superblock superblock;  // the newest valid copy
  // Why the other copy is not usable; OK when both are. A caller that may write repairs it by an
  // ordinary update.
  absl::Status other_copy;
  // Both are usable and name different sizes: a resize was cut between its two updates. The newer
  // one's size counts, and nobody has used it yet.
  bool size_half_recorded = false;
};

// Errors:     FAILED_PRECONDITION a copy has an unknown format or the copies name different stores;
//             DATA_LOSS both damaged.
absl::StatusOr<SuperblockChoice> ChooseSuperblock(std::span<const std::byte> page0,
                                                  std::span<const std::byte> page1);

}  // namespace cairn::kv
