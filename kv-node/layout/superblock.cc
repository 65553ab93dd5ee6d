#include "kv-node/layout/superblock.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/io/checksum.h"

namespace cairn::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the superblock is copied between memory and disk as it is");

constexpr std::array<char, 8> kMagic = {'C', 'A', 'I', 'R', 'N', 'K', 'V', '\0'};

std::uint32_t CrcOf(std::span<const std::byte> page) {
  return Crc32c(page.first(offsetof(SuperblockBytes, crc32c)));
}

absl::Status CheckFields(const SuperblockBytes& bytes, int copy_index) {
  if (bytes.format_version < kFormatVersionMin || bytes.format_version > kFormatVersion) {
    return FailedPrecondition(
        "superblock copy {}: format version {}, this program reads versions {} to {}; use the "
        "release that wrote it",
        copy_index, bytes.format_version, kFormatVersionMin, kFormatVersion);
  }
  if (bytes.page_bytes != kPageBytes) {
    return FailedPrecondition("superblock copy {}: pages of {} bytes, this program uses {}",
                              copy_index, bytes.page_bytes, kPageBytes);
  }
  if (std::any_of(bytes.reserved.begin(), bytes.reserved.end(), [](auto b) { return b != 0; })) {
    return FailedPrecondition(
        "superblock copy {}: reserved bytes are set, so a newer program wrote it; use that one",
        copy_index);
  }
  if (bytes.sequence % kSuperblockCopyCount != static_cast<std::uint64_t>(copy_index)) {
    return DataLoss("superblock copy {}: sequence {} belongs to the other copy", copy_index,
                    bytes.sequence);
  }
  if (bytes.page_count < kStorePageCountMin || bytes.page_count > kStorePageCountMax) {
    return DataLoss("superblock copy {}: page count {} is not in {}..{}", copy_index,
                    bytes.page_count, kStorePageCountMin, kStorePageCountMax);
  }
  return absl::OkStatus();
}

// Intact, but nothing that this program may touch.
bool IsForeign(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition;
}

}  // namespace

StoreId NewStoreId() {
  StoreId id;
  CAIRN_CHECK_EQ(getentropy(id.data(), id.size()), 0);
  return id;
}

std::string FormatStoreId(const StoreId& id) {
  std::string text;
  for (const std::byte byte : id) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

SuperblockBytes EncodeSuperblock(const Superblock& superblock) {
  CAIRN_CHECK_GE(superblock.page_count, kStorePageCountMin);
  CAIRN_CHECK_LE(superblock.page_count, kStorePageCountMax);
  SuperblockBytes bytes{};
  bytes.magic = kMagic;
  bytes.format_version = kFormatVersion;
  bytes.page_bytes = static_cast<std::uint32_t>(kPageBytes);
  bytes.sequence = superblock.sequence;
  bytes.store_id = superblock.store_id;
  bytes.page_count = superblock.page_count;
  bytes.create_time_unix_seconds = superblock.create_time_unix_seconds;
  bytes.metadata_sequence = superblock.metadata_sequence;
  bytes.crc32c = CrcOf(std::as_bytes(std::span(&bytes, 1)));
  return bytes;
}

absl::StatusOr<Superblock> DecodeSuperblock(std::span<const std::byte> page, int copy_index) {
  CAIRN_CHECK_EQ(page.size(), sizeof(SuperblockBytes));
  SuperblockBytes bytes;
  std::memcpy(&bytes, page.data(), sizeof bytes);
  if (bytes.magic != kMagic) {
    return DataLoss("superblock copy {}: the magic bytes are missing", copy_index);
  }
  const std::uint32_t crc = CrcOf(page);
  if (bytes.crc32c != crc) {
    return DataLoss("superblock copy {}: checksum {:08x}, its bytes give {:08x}", copy_index,
                    bytes.crc32c, crc);
  }
  CAIRN_RETURN_IF_ERROR(CheckFields(bytes, copy_index));
  return Superblock{.sequence = bytes.sequence,
                    .store_id = bytes.store_id,
                    .page_count = bytes.page_count,
                    .create_time_unix_seconds = bytes.create_time_unix_seconds,
                    .metadata_sequence = bytes.metadata_sequence};
}

absl::StatusOr<SuperblockChoice> ChooseSuperblock(std::span<const std::byte> page0,
                                                  std::span<const std::byte> page1) {
  const absl::StatusOr<Superblock> copy0 = DecodeSuperblock(page0, 0);
  const absl::StatusOr<Superblock> copy1 = DecodeSuperblock(page1, 1);
  if (IsForeign(copy0.status())) return copy0.status();
  if (IsForeign(copy1.status())) return copy1.status();
  if (!copy0.ok() && !copy1.ok()) {
    return DataLoss(
        "both superblock copies are damaged ({}; {}); nothing was changed: restore the store's "
        "directory from a backup, or begin with an empty store in another data_dir",
        Message(copy0.status()), Message(copy1.status()));
  }
  if (!copy1.ok()) return SuperblockChoice{*copy0, copy1.status()};
  if (!copy0.ok()) return SuperblockChoice{*copy1, copy0.status()};
  if (copy0->store_id != copy1->store_id) {
    return FailedPrecondition(
        "the superblock copies disagree: store {} and store {}; restore the store's directory from "
        "a backup",
        FormatStoreId(copy0->store_id), FormatStoreId(copy1->store_id));
  }
  const bool first_is_newer = copy0->sequence > copy1->sequence;
  return SuperblockChoice{first_is_newer ? *copy0 : *copy1, absl::OkStatus(),
                          copy0->page_count != copy1->page_count};
}

}  // namespace cairn::kv
