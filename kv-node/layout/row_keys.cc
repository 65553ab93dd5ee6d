// Keys of the rows; values are in rows.cc.
#include "kv-node/layout/rows.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kIdBytes = 8;
constexpr char kHeadKind = 'h';
constexpr char kPolicyKind = 's';
constexpr char kTokensKind = 't';

void PutBig(std::string& out, std::uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t GetBig(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<std::uint8_t>(c);
  return value;
}

// Ids are not negative: a set top bit is damage.
bool StartsWithId(std::string_view key) { return static_cast<std::uint8_t>(key[0]) < 0x80; }

std::int64_t GetId(std::string_view key) {
  return static_cast<std::int64_t>(GetBig(key.substr(0, kIdBytes)));
}

std::string IdKey(std::int64_t id) {
  std::string out;
  PutBig(out, static_cast<std::uint64_t>(id), kIdBytes);
  return out;
}

// segment, layer, head + 1 (so that -1 sorts first and is not negative)
std::string LayerHeadKey(SegmentId segment, const ClusterKey& key) {
  std::string out = IdKey(segment.value());
  PutBig(out, static_cast<std::uint64_t>(key.layer), 2);
  PutBig(out, static_cast<std::uint64_t>(key.head) + 1, 2);
  return out;
}
constexpr std::size_t kLayerHeadKeyBytes = kIdBytes + 4;

ClusterKey ParseLayerHead(std::string_view key) {
  ClusterKey out;
  out.layer = static_cast<std::int32_t>(GetBig(key.substr(kIdBytes, 2)));
  out.head = static_cast<std::int32_t>(GetBig(key.substr(kIdBytes + 2, 2))) - 1;
  return out;
}

absl::Status BadKey(std::string_view family, std::string_view key) {
  return DataLoss("a key of family {} with {} bytes is damaged", family, key.size());
}

absl::StatusOr<ClusterKey> ParseClusterKey(std::string_view family, std::string_view key) {
  if (key.size() != kLayerHeadKeyBytes + kIdBytes || !StartsWithId(key) ||
      !StartsWithId(key.substr(kLayerHeadKeyBytes))) {
    return BadKey(family, key);
  }
  ClusterKey out = ParseLayerHead(key);
  out.cluster_id = ClusterId(GetId(key.substr(kLayerHeadKeyBytes)));
  return out;
}

}  // namespace

std::string SessionKeyBytes(SessionId session) { return IdKey(session.value()); }
std::string SegmentPrefix(SegmentId segment) { return IdKey(segment.value()); }
std::string SegmentHeadKey(SegmentId segment) { return IdKey(segment.value()) + kHeadKind; }
std::string SegmentPolicyKey(SegmentId segment) { return IdKey(segment.value()) + kPolicyKind; }

std::string SegmentTokensKey(SegmentId segment, std::int64_t block) {
  std::string out = IdKey(segment.value()) + kTokensKind;
  PutBig(out, static_cast<std::uint64_t>(block), 4);
  return out;
}

std::string SegmentLayerPrefix(SegmentId segment, std::int32_t layer) {
  return LayerHeadKey(segment, {layer, 0, ClusterId()}).substr(0, kIdBytes + 2);
}

std::string ClusterRowKey(SegmentId segment, const ClusterKey& key, ClusterRowKind kind) {
  std::string out = LayerHeadKey(segment, key);
  out.push_back(static_cast<char>(kind));
  // + 1 because the window's buffer is -1
  PutBig(out, static_cast<std::uint64_t>(key.cluster_id.value() + 1), kIdBytes);
  return out;
}

std::string IndexRowKey(SegmentId segment, const ClusterKey& key) {
  std::string out = LayerHeadKey(segment, key);
  PutBig(out, static_cast<std::uint64_t>(key.cluster_id.value()), kIdBytes);
  return out;
}

std::string LinkRowKey(SegmentId segment, const ClusterKey& key) {
  return IndexRowKey(segment, key);  // of the same form, in a family of its own
}

std::string RegionKey(SegmentId segment, std::int64_t region) {
  std::string out = IdKey(segment.value());
  PutBig(out, static_cast<std::uint64_t>(region), 4);
  return out;
}

absl::StatusOr<SessionId> ParseSessionKey(std::string_view key) {
  if (key.size() != kIdBytes || !StartsWithId(key)) return BadKey("sessions", key);
  return SessionId(GetId(key));
}

absl::StatusOr<std::optional<SegmentId>> ParseSegmentHeadKey(std::string_view key) {
  if (key.size() <= kIdBytes || !StartsWithId(key)) return BadKey("segments", key);
  if (key[kIdBytes] != kHeadKind) return std::optional<SegmentId>();
  if (key.size() != kIdBytes + 1) return BadKey("segments", key);
  return std::optional(SegmentId(GetId(key)));
}

absl::StatusOr<ParsedClusterRowKey> ParseClusterRowKey(std::string_view key) {
  if (key.size() != kLayerHeadKeyBytes + 1 + kIdBytes || !StartsWithId(key) ||
      !StartsWithId(key.substr(kLayerHeadKeyBytes + 1))) {
    return BadKey("clusters", key);
  }
  ParsedClusterRowKey out;
  out.key = ParseLayerHead(key);
  out.kind = static_cast<ClusterRowKind>(key[kLayerHeadKeyBytes]);
  if (out.kind != ClusterRowKind::kParts && out.kind != ClusterRowKind::kMask &&
      out.kind != ClusterRowKind::kEvicted && out.kind != ClusterRowKind::kCarried) {
    return BadKey("clusters", key);
  }
  out.key.cluster_id = ClusterId(GetId(key.substr(kLayerHeadKeyBytes + 1)) - 1);
  return out;
}

absl::StatusOr<ClusterKey> ParseIndexRowKey(std::string_view key) {
  return ParseClusterKey("index", key);
}

absl::StatusOr<ClusterKey> ParseLinkRowKey(std::string_view key) {
  return ParseClusterKey("coretrieval", key);
}

absl::StatusOr<ParsedRegionKey> ParseRegionKey(std::string_view key) {
  if (key.size() != kIdBytes + 4 || !StartsWithId(key)) return BadKey("pools", key);
  ParsedRegionKey out;
  out.segment = SegmentId(GetId(key));
  out.region = static_cast<std::int64_t>(GetBig(key.substr(kIdBytes)));
  return out;
}

}  // namespace cairn::kv
