// Fuzzes the decoders of the metadata rows, their keys and the superblock. The first byte chooses
// the decoder; what it accepts must be encoded again and decoded to the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/io/checksum.h"
#include "kv-node/layout/index_run.h"
#include "kv-node/layout/rows.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kLargestEntryBytes =
    KvEntryBytes(KvFormat::kF32, kHeadDimMax) * kHeadCountMax;

// What decodes can be encoded, and then decodes to what encodes alike.
template <typename Decode, typename Encode>
void RoundTrip(std::string_view bytes, const Decode& decode, const Encode& encode) {
  const auto first = decode(bytes);
  if (!first.ok()) {
    CAIRN_CHECK(first.status().code() == absl::StatusCode::kDataLoss);
    return;
  }
  const std::string encoded = encode(*first);
  const auto second = decode(std::string_view(encoded));
  CAIRN_CHECK(second.ok());
  CAIRN_CHECK(encode(*second) == encoded);
}

SegmentId PrefixOf(std::string_view key) {
  std::uint64_t id = 0;
  for (const char byte : key.substr(0, 8)) id = id << 8 | static_cast<std::uint8_t>(byte);
  return SegmentId(static_cast<std::int64_t>(id));
}

// A key that is accepted is the one that its parts make.
void ParseKeys(std::string_view bytes) {
  if (const auto key = ParseSessionKey(bytes); key.ok()) {
    CAIRN_CHECK(SessionKeyBytes(*key) == bytes);
  }
  if (const auto key = ParseSegmentHeadKey(bytes); key.ok() && key->has_value()) {
    CAIRN_CHECK(SegmentHeadKey(**key) == bytes);
  }
  if (const auto key = ParseRegionKey(bytes); key.ok()) {
    CAIRN_CHECK(RegionKey(key->segment, key->region) == bytes);
  }
  if (bytes.size() < SegmentPrefix(SegmentId(0)).size()) return;
  // these leave it to the caller which segment the key's prefix names
  const SegmentId segment = PrefixOf(bytes);
  if (const auto key = ParseClusterRowKey(bytes); key.ok()) {
    CAIRN_CHECK(ClusterRowKey(segment, key->key, key->kind) == bytes);
  }
  if (const auto key = ParseIndexRowKey(bytes); key.ok()) {
    CAIRN_CHECK(IndexRowKey(segment, *key) == bytes);
  }
  if (const auto key = ParseLinkRowKey(bytes); key.ok()) {
    CAIRN_CHECK(LinkRowKey(segment, *key) == bytes);
  }
  if (const auto layer = ParseIndexRunKey(bytes); layer.ok()) {
    CAIRN_CHECK(IndexRunKey(segment, *layer) == bytes);
  }
}

void DecodeRecord(std::string_view bytes) {
  if (std::ssize(bytes) < kIndexRecordHeaderBytes) return;
  const auto row = DecodeIndexRecord(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (!row.ok()) return;
  std::vector<std::byte> record(static_cast<std::size_t>(IndexRecordBytes(*row)));
  EncodeIndexRecord(*row, record);
  CAIRN_CHECK(std::memcmp(record.data(), bytes.data(), record.size()) == 0);
}

// A copy that begins with these bytes, and is intact: the checksum would refuse nearly all others.
std::vector<std::byte> CopyOf(std::string_view bytes) {
  SuperblockBytes copy = EncodeSuperblock({.sequence = 2, .page_count = kStorePageCountMin});
  std::vector<std::byte> page(sizeof copy);
  std::memcpy(page.data(), &copy, sizeof copy);
  std::memcpy(page.data(), bytes.data(), std::min(bytes.size(), page.size()));
  const std::uint32_t crc = Crc32c(std::span(page).first(offsetof(SuperblockBytes, crc32c)));
  std::memcpy(page.data() + offsetof(SuperblockBytes, crc32c), &crc, sizeof crc);
  return page;
}

// What a copy says is written again as it was; of two one is chosen, or both are refused.
void DecodeSuperblocks(std::string_view bytes) {
  const std::vector<std::byte> first = CopyOf(bytes.substr(0, bytes.size() / 2));
  const std::vector<std::byte> second = CopyOf(bytes.substr(bytes.size() / 2));
  for (const int copy : {0, 1}) {
    const auto decoded = DecodeSuperblock(copy == 0 ? first : second, copy);
    if (!decoded.ok()) continue;
    const SuperblockBytes encoded = EncodeSuperblock(*decoded);
    const auto again = DecodeSuperblock(std::as_bytes(std::span(&encoded, 1)), copy);
    CAIRN_CHECK(again.ok());
    CAIRN_CHECK(*again == *decoded);
  }
  const auto choice = ChooseSuperblock(first, second);
  if (!choice.ok()) return;
  const bool has_first = DecodeSuperblock(first, 0).ok();
  const bool has_second = DecodeSuperblock(second, 1).ok();
  CAIRN_CHECK(has_first || has_second);
  CAIRN_CHECK(choice->other_copy.ok() == (has_first && has_second));
}

// As it is read: any bytes.
void DecodeRawSuperblock(std::string_view bytes) {
  std::vector<std::byte> page(kPageBytes);
  std::memcpy(page.data(), bytes.data(), std::min(bytes.size(), page.size()));
  DecodeSuperblock(page, 0).status().IgnoreError();
}

void Decode(std::uint8_t kind, std::string_view bytes) {
  switch (kind % 16) {
    case 0:
      return RoundTrip(bytes, DecodeSessionRow, EncodeSessionRow);
    case 1:
      return RoundTrip(bytes, DecodeSegmentRow, EncodeSegmentRow);
    case 2:
      return RoundTrip(bytes, DecodePolicyRow, EncodePolicyRow);
    case 3:
      return DecodeParts(bytes, 256).status().IgnoreError();
    case 4:
      return DecodeParts(bytes, kLargestEntryBytes).status().IgnoreError();
    case 5:
      return RoundTrip(bytes, DecodePositions, EncodePositions);
    case 6:
      return RoundTrip(
          bytes, [](std::string_view row) { return DecodeIndexRow({}, row); }, EncodeIndexRow);
    case 7:
      return RoundTrip(bytes, DecodeTokens, EncodeTokens);
    case 8:
      return RoundTrip(bytes, DecodeRegion, EncodeRegion);
    case 9:
      return RoundTrip(bytes, DecodeDeviceProfile, EncodeDeviceProfile);
    case 10:
      return RoundTrip(bytes, DecodeLinks, EncodeLinks);
    case 11:
      return DecodeIndexRun(bytes).status().IgnoreError();
    case 12:
      return DecodeRecord(bytes);
    case 13:
      return DecodeSuperblocks(bytes);
    case 14:
      return DecodeRawSuperblock(bytes);
    default:
      ParseKeys(bytes);
      return RoundTrip(bytes, DecodeNextId, EncodeNextId);
  }
}

}  // namespace
}  // namespace cairn::kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  cairn::kv::Decode(data[0], bytes.substr(1));
  return 0;
}
