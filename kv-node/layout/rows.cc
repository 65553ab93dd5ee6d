#include "kv-node/layout/rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "kv-node/layout/byte_codec.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kRunCountMax = std::int64_t{1} << 24;  // runs of positions in one list
constexpr std::int64_t kGroupCountMax = std::int64_t{1} << 20;
constexpr std::int64_t kPageCountMax = std::int64_t{1} << 40;
constexpr std::int64_t kDeviceNameBytesMax = 64;
constexpr std::int64_t kLatencyUsMax = std::int64_t{1} << 40;
constexpr std::int64_t kPartIdMax = INT64_MAX - kGroupCountMax;  // ids of a group count up

absl::Status Damaged(std::string_view what) {
  return DataLoss("a stored {} row is damaged or of a newer version", what);
}

void PutPositions(ByteWriter& out, const Positions& positions) {
  out.Varint(static_cast<std::int64_t>(positions.runs().size()));
  std::int64_t end = 0;
  for (const Positions::Run& run : positions.runs()) {
    out.Varint(run.start - end);
    out.Varint(run.length);
    end = run.start + run.length;
  }
}

Positions GetPositions(ByteReader& in) {
  // A run takes two bytes at least, so the row's length bounds their count too.
  Positions::Runs runs(static_cast<std::size_t>(in.Count(std::min(kRunCountMax, in.remaining()))));
  std::int64_t end = 0;
  for (Positions::Run& run : runs) {
    run.start = end + in.Count(kPositionMax);
    run.length = in.Count(kPositionMax);
    end = run.start + run.length;
  }
  absl::StatusOr<Positions> positions = Positions::FromRuns(std::move(runs));
  if (!positions.ok()) {
    in.MarkBad();
    return {};
  }
  return *std::move(positions);
}

void PutLayout(ByteWriter& out, const EntryLayout& layout) {
  out.Varint(layout.layer_count);
  out.Varint(layout.head_count);
  out.Varint(layout.head_dim);
  out.Varint(static_cast<std::int64_t>(layout.kv_format));
}

EntryLayout GetLayout(ByteReader& in) {
  EntryLayout layout;
  layout.layer_count = static_cast<std::int32_t>(in.Count(kLayerCountMax));
  layout.head_count = static_cast<std::int32_t>(in.Count(kHeadCountMax));
  layout.head_dim = static_cast<std::int32_t>(in.Count(kHeadDimMax));
  const std::optional<KvFormat> format = KvFormatFromNumber(in.Varint());
  layout.kv_format = format.value_or(KvFormat::kF16);
  if (!format || !layout.Validate().ok()) in.MarkBad();
  return layout;
}

void PutKey(ByteWriter& out, const SegmentKey& key) {
  out.Bytes(key.model_digest);
  out.Bytes(key.adapter_digest);
  out.Fixed32(std::bit_cast<std::uint32_t>(key.adapter_scale));
  out.Bytes(key.rope_parameters);
  out.Varint(static_cast<std::int64_t>(key.kv_format));
  out.Bytes(key.sharing_domain);
}

SegmentKey GetKey(ByteReader& in) {
  SegmentKey key;
  key.model_digest = in.Bytes(kDigestBytes);
  key.adapter_digest = in.Bytes(kDigestBytes);
  key.adapter_scale = std::bit_cast<float>(in.Fixed32());
  key.rope_parameters = in.Bytes(kRopeParametersBytesMax);
  const std::optional<KvFormat> format = KvFormatFromNumber(in.Varint());
  key.kv_format = format.value_or(KvFormat::kF16);
  key.sharing_domain = in.Bytes(kLabelBytesMax);
  if (!format || !key.Validate().ok()) in.MarkBad();
  return key;
}

std::string GetUid(ByteReader& in) {
  std::string uid(in.Bytes(kUidBytes));
  if (!uid.empty() && std::ssize(uid) != kUidBytes) in.MarkBad();
  return uid;
}

// Whether `next` continues a group of one-entry records: the next id, place and position.
bool Continues(const Part& last, const Part& next, std::int64_t entry_bytes) {
  return last.count() == 1 && next.count() == 1 && last.first_page == next.first_page &&
         last.kind != ExtentKind::kPool && next.id.value() == last.id.value() + 1 &&
         next.offset_bytes == last.offset_bytes + entry_bytes &&
         next.positions.first() == last.positions.first() + 1;
}

void PutCrcs(ByteWriter& out, const PartCrcs& crcs) {
  out.Varint(static_cast<std::int64_t>(crcs.size()));
  for (const std::uint32_t crc : crcs) out.Fixed32(crc);
}

PartCrcs GetCrcs(ByteReader& in) {
  PartCrcs crcs(static_cast<std::size_t>(in.Count(in.remaining() / 4)));
  for (std::uint32_t& crc : crcs) crc = in.Fixed32();
  return crcs;
}

// Reads one group and appends its parts.
void GetGroup(ByteReader& in, std::int64_t entry_bytes, std::vector<StoredPart>& parts) {
  const std::int64_t group_count = in.Count(kGroupCountMax);
  const std::uint8_t flags = in.Byte();
  StoredPart base;
  base.kind = static_cast<ExtentKind>(flags >> 1);
  base.direction = (flags & 1) != 0 ? Direction::kDown : Direction::kUp;
  base.id = PartId(in.Count(kPartIdMax));
  base.first_page = PageIndex(in.Count(kPageCountMax));
  base.page_count = in.Count(kPageCountMax);
  base.offset_bytes = in.Count(base.page_count * kPageBytes);
  base.positions = GetPositions(in);
  const bool one_entry_if_group = group_count == 1 || base.positions.count() == 1;
  const bool known_kind = base.kind >= ExtentKind::kPool && base.kind <= ExtentKind::kIndexRun;
  if (group_count < 1 || base.positions.empty() || !one_entry_if_group || !known_kind ||
      base.page_count < 1) {
    in.MarkBad();
    return;
  }
  parts.push_back(std::move(base));
  for (std::int64_t i = 0; i < group_count && in.ok(); ++i) {
    if (i > 0) {
      StoredPart next = parts.back();
      next.id = PartId(next.id.value() + 1);
      next.offset_bytes += entry_bytes;
      next.positions = Positions::Range(next.positions.first() + 1, 1);
      parts.push_back(std::move(next));
    }
    StoredPart& part = parts.back();
    part.crcs = GetCrcs(in);
    const std::int64_t bytes = part.positions.count() * entry_bytes;
    if (bytes > kPartBytesMax || part.offset_bytes + bytes > part.page_count * kPageBytes ||
        part.positions.last() > kPositionMax) {
      in.MarkBad();
    }
  }
}

}  // namespace

std::string EncodeSessionRow(const SessionRow& row) {
  ByteWriter out(kSessionRowVersion);
  out.Varint(row.segment.value());
  out.Varint(row.epoch.value());
  out.Varint(row.op_seq.value());
  PutLayout(out, row.layout);
  PutKey(out, row.key);
  out.Bytes(row.label);
  out.Varint(row.token_count);
  out.Varint(row.flash_bytes);
  out.Varint(row.create_time_us);
  out.Varint(row.checkpoint_time_us);
  out.Bytes(row.uid);
  out.Bytes(row.owner.owner);
  out.Varint(row.owner.number);
  out.Byte(static_cast<std::uint8_t>(row.lifetime));
  out.Bytes(row.creator);
  out.Varint(row.app.value());
  return out.Take();
}

absl::StatusOr<SessionRow> DecodeSessionRow(std::string_view bytes) {
  ByteReader in(bytes);
  const std::uint8_t version = in.Byte();
  if (version < 1 || version > kSessionRowVersion) return Damaged("session");
  SessionRow row;
  row.segment = SegmentId(in.Varint());
  row.epoch = Epoch(in.Varint());
  row.op_seq = OpSeq(in.Varint());
  row.layout = GetLayout(in);
  row.key = GetKey(in);
  row.label = in.Bytes(kLabelBytesMax);
  row.token_count = in.Varint();
  row.flash_bytes = in.Varint();
  row.create_time_us = in.Varint();
  row.checkpoint_time_us = in.Varint();
  if (version >= 2) {
    row.uid = GetUid(in);
    row.owner.owner = GetUid(in);
    row.owner.number = in.Varint();
    const std::uint8_t lifetime = in.Byte();
    if (lifetime < 1 || lifetime > 3) in.MarkBad();
    row.lifetime = static_cast<SessionLifetime>(lifetime);
    row.creator = in.Bytes(kCreatorBytesMax);
  }
  if (version >= 3) row.app = AppId(in.Varint());
  if (!in.ok() || !in.at_end()) return Damaged("session");
  return row;
}

std::string EncodeSegmentRow(const SegmentRow& row) {
  ByteWriter out(kSegmentRowVersion);
  out.Varint(row.parent.value());
  out.Varint(row.start);
  out.Varint(row.token_count);
  out.Byte(static_cast<std::uint8_t>((row.sealed ? 1 : 0) | (row.has_checkpoint ? 2 : 0)));
  PutLayout(out, row.layout);
  PutKey(out, row.key);
  out.Varint(static_cast<std::int64_t>(row.next_cluster_ids.size()));
  for (const std::int64_t id : row.next_cluster_ids) out.Varint(id);
  out.Varint(row.app.value());
  return out.Take();
}

absl::StatusOr<SegmentRow> DecodeSegmentRow(std::string_view bytes) {
  ByteReader in(bytes);
  const std::uint8_t version = in.Byte();
  if (version < 1 || version > kSegmentRowVersion) return Damaged("segment");
  SegmentRow row;
  row.parent = SegmentId(in.Varint());
  row.start = in.Count(kPositionMax);
  row.token_count = in.Count(kPositionMax);
  const std::uint8_t flags = in.Byte();
  row.sealed = (flags & 1) != 0;
  row.has_checkpoint = (flags & 2) != 0;
  row.layout = GetLayout(in);
  row.key = GetKey(in);
  row.next_cluster_ids.resize(static_cast<std::size_t>(in.Count(in.remaining())));
  for (std::int64_t& id : row.next_cluster_ids) id = in.Varint();
  if (version >= 2) row.app = AppId(in.Varint());
  if (!in.ok() || !in.at_end() || flags > 3) return Damaged("segment");
  return row;
}

std::string EncodePolicyRow(const PolicyRow& row) {
  ByteWriter out(kRowVersion);
  out.Varint(row.version);
  out.Bytes(row.state);
  out.Bytes(row.random_state);
  return out.Take();
}

absl::StatusOr<PolicyRow> DecodePolicyRow(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  PolicyRow row;
  row.version = static_cast<std::int32_t>(in.Count(INT32_MAX));
  row.state = in.Bytes(kPolicyStateBytesMax);
  row.random_state = in.Bytes(kRandomStateBytesMax);
  if (!in.ok() || !in.at_end()) return Damaged("policy");
  return row;
}

std::string EncodeParts(const std::vector<Part>& parts, std::int64_t entry_bytes) {
  ByteWriter out(kRowVersion);
  for (std::size_t i = 0; i < parts.size();) {
    std::size_t end = i + 1;
    while (end < parts.size() && Continues(parts[end - 1], parts[end], entry_bytes)) ++end;
    const Part& base = parts[i];
    out.Varint(static_cast<std::int64_t>(end - i));
    out.Byte(static_cast<std::uint8_t>(static_cast<int>(base.kind) << 1 |
                                       (base.direction == Direction::kDown ? 1 : 0)));
    out.Varint(base.id.value());
    out.Varint(base.first_page.value());
    out.Varint(base.page_count);
    out.Varint(base.offset_bytes);
    PutPositions(out, base.positions);
    for (; i < end; ++i) PutCrcs(out, parts[i].crcs);
  }
  return out.Take();
}

absl::StatusOr<std::vector<StoredPart>> DecodeParts(std::string_view bytes,
                                                    std::int64_t entry_bytes) {
  ByteReader in(bytes, kRowVersion);
  std::vector<StoredPart> parts;
  while (in.ok() && !in.at_end()) GetGroup(in, entry_bytes, parts);
  if (!in.ok()) return Damaged("cluster");
  return parts;
}

std::string EncodePositions(const Positions& positions) {
  ByteWriter out(kRowVersion);
  PutPositions(out, positions);
  return out.Take();
}

absl::StatusOr<Positions> DecodePositions(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  Positions positions = GetPositions(in);
  if (!in.ok() || !in.at_end()) return Damaged("position");
  return positions;
}

std::string EncodeIndexRow(const IndexRow& row) {
  ByteWriter out(kRowVersion);
  out.Byte(row.stale && !FailPoint("the bit of a stale index row is not stored (rule 11)") ? 1 : 0);
  out.Varint(row.entry_count);
  out.Bytes(row.row);
  return out.Take();
}

absl::StatusOr<IndexRow> DecodeIndexRow(const ClusterKey& key, std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  IndexRow row;
  row.cluster = {key.head, key.cluster_id};
  const std::uint8_t flags = in.Byte();
  row.stale = flags == 1;
  row.entry_count = in.Count(kPositionMax + 1);
  row.row = in.Bytes(kIndexRowBytesMax);
  if (!in.ok() || !in.at_end() || flags > 1) return Damaged("index");
  return row;
}

std::string EncodeLinks(const std::vector<ClusterLink>& links) {
  ByteWriter out(kRowVersion);
  out.Varint(static_cast<std::int64_t>(links.size()));
  for (const ClusterLink& link : links) {
    out.Varint(link.cluster.value());
    out.Varint(link.count);
  }
  return out.Take();
}

absl::StatusOr<std::vector<ClusterLink>> DecodeLinks(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  std::vector<ClusterLink> links(static_cast<std::size_t>(in.Count(kLinksOfClusterMax)));
  for (ClusterLink& link : links) {
    link.cluster = ClusterId(in.Varint());
    link.count = static_cast<std::int32_t>(in.Count(kLinkCountMax));
    const auto same = [&](const ClusterLink& other) { return other.cluster == link.cluster; };
    if (link.cluster.value() < 1 || link.count < 1 ||
        std::count_if(links.begin(), links.end(), same) > 1) {
      in.MarkBad();
    }
  }
  if (!in.ok() || !in.at_end() || links.empty()) return Damaged("co-retrieval");
  return links;
}

std::string EncodeTokens(const std::vector<std::int32_t>& tokens) {
  ByteWriter out(kRowVersion);
  for (const std::int32_t token : tokens) out.Fixed32(static_cast<std::uint32_t>(token));
  return out.Take();
}

absl::StatusOr<std::vector<std::int32_t>> DecodeTokens(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  if (!in.ok() || in.remaining() % 4 != 0) return Damaged("token");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(in.remaining() / 4));
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(in.Fixed32());
  if (static_cast<std::int64_t>(tokens.size()) > kTokenBlockCount) return Damaged("token");
  return tokens;
}

std::string EncodeRegion(const RegionBits& bits) {
  ByteWriter out(kRowVersion);
  for (std::int64_t i = 0; i < kRegionPages; i += 8) {
    std::uint8_t byte = 0;
    for (std::int64_t j = 0; j < 8; ++j) {
      byte = static_cast<std::uint8_t>(byte | bits[static_cast<std::size_t>(i + j)] << j);
    }
    out.Byte(byte);
  }
  return out.Take();
}

absl::StatusOr<RegionBits> DecodeRegion(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  if (in.remaining() != kRegionPages / 8) return Damaged("allocation");
  RegionBits bits;
  for (std::int64_t i = 0; i < kRegionPages; i += 8) {
    const std::uint8_t byte = in.Byte();
    for (std::int64_t j = 0; j < 8; ++j) {
      bits[static_cast<std::size_t>(i + j)] = (byte >> j & 1) != 0;
    }
  }
  return bits;
}

std::string EncodeNextId(std::int64_t next_id) {
  ByteWriter out(kRowVersion);
  out.Varint(next_id);
  return out.Take();
}

absl::StatusOr<std::int64_t> DecodeNextId(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  const std::int64_t next_id = in.Varint();
  if (!in.ok() || !in.at_end()) return Damaged("id");
  return next_id;
}

std::string DeviceProfileKey(std::string_view model) {
  std::string key(kDeviceProfileKeyPrefix);
  if (!model.empty()) key += '+';
  return key.append(model);
}

std::string EncodeDeviceProfile(const DeviceProfile& profile) {
  ByteWriter out(kRowVersion);
  out.Bytes(profile.device_name);
  out.Varint(profile.page_latency.count());
  out.Varint(profile.knee_bytes);
  out.Varint(profile.break_even_gap_bytes);
  out.Varint(profile.queue_depth);
  for (const auto* points : {&profile.by_size, &profile.by_depth}) {
    out.Varint(static_cast<std::int64_t>(points->size()));
    for (const ProfilePoint& point : *points) {
      out.Varint(point.request_bytes);
      out.Varint(point.depth);
      out.Varint(point.bytes_per_second);
    }
  }
  return out.Take();
}

absl::StatusOr<DeviceProfile> DecodeDeviceProfile(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
  DeviceProfile profile;
  profile.device_name = in.Bytes(kDeviceNameBytesMax);
  profile.page_latency = std::chrono::microseconds(in.Count(kLatencyUsMax));
  profile.knee_bytes = in.Count(kRequestBytesMax);
  profile.break_even_gap_bytes = in.Count(kRequestBytesMax);
  profile.queue_depth = static_cast<int>(in.Count(kQueueDepthMax));
  for (auto* points : {&profile.by_size, &profile.by_depth}) {
    points->resize(static_cast<std::size_t>(in.Count(kProfilePointsMax)));
    for (ProfilePoint& point : *points) {
      point.request_bytes = in.Count(kRequestBytesMax);
      point.depth = static_cast<int>(in.Count(kQueueDepthMax));
      point.bytes_per_second = in.Varint();
    }
  }
  if (!in.ok() || !in.at_end() || profile.queue_depth < 1) return Damaged("device profile");
  return profile;
}

}  // namespace cairn::kv
