// The rows of the metadata store: keys and values as bytes. docs/on-disk-format.md, "Rows",
// describes each. Keys sort: all numbers in them are big-endian. Values begin with a format
// version; integers are varints, fixed ones little-endian.
//
// Threading:  pure functions.
// Errors:     every Decode answers DATA_LOSS for bytes that no Encode makes: all counts and sizes
//             are bounded before use.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/device/calibrate.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

inline constexpr std::uint8_t kRowVersion = 1;
// Of session rows. Version 1 has neither uid nor owner, and is of permanent sessions.
inline constexpr std::uint8_t kSessionRowVersion = 3;
inline constexpr std::uint8_t kSegmentRowVersion = 2;
// Token ids are stored in blocks, so that a checkpoint rewrites at most one that is partly filled.
inline constexpr std::int64_t kTokenBlockCount = 1024;
// An allocation record covers this many pages.
inline constexpr std::int64_t kRegionPages = 256;

// What a row of family `clusters` is about; part of its key, sorts after (layer, head).
enum class ClusterRowKind : char {
  kParts = 'p',    // parts of a cluster that this segment holds
  kMask = 'm',     // hides an older cluster from this chain
  kEvicted = 'e',  // positions that are gone
  kCarried = 'c',  // records of carried entries; the id is the buffer's
};

struct ClusterKey {
  std::int32_t layer = 0;
  std::int32_t head = 0;
  ClusterId cluster_id;
  friend auto operator<=>(const ClusterKey&, const ClusterKey&) = default;
};

struct SessionRow {
  AppId app = kDefaultApp;
  std::string uid;  // kUidBytes; empty: an older release made it, and nobody attached since
  SegmentId segment;
  Epoch epoch;
  AttachAttempt owner;  // of that epoch; nobody's: the KV node ended the epoch before
  OpSeq op_seq;
  EntryLayout layout;
  SegmentKey key;
  std::string label;
  std::int64_t token_count = 0;
  std::int64_t flash_bytes = 0;
  std::int64_t create_time_us = 0;
  std::int64_t checkpoint_time_us = 0;
  SessionLifetime lifetime = SessionLifetime::kPermanent;
  std::string creator;
};

struct SegmentRow {
  AppId app = kDefaultApp;
  SegmentId parent;  // 0: none
  std::int64_t start = 0;
  std::int64_t token_count = 0;
  bool sealed = false;
  bool has_checkpoint = false;
  std::vector<std::int64_t> next_cluster_ids;
  SegmentKey key;
  EntryLayout layout;
};

struct PolicyRow {
  std::int32_t version = 0;
  std::string state;
  std::string random_state;
};

// That a cluster of the same layer and head is fetched together with another one, and how often, as
// far as it was counted.
struct ClusterLink {
  ClusterId cluster;
  std::int32_t count = 0;
  friend bool operator==(const ClusterLink&, const ClusterLink&) = default;
};
inline constexpr std::int32_t kLinkCountMax = 65535;
inline constexpr std::int32_t kLinksOfClusterMax = 8;

using RegionBits = std::bitset<kRegionPages>;

// ---- keys ----
std::string SessionKeyBytes(SessionId session);
std::string SegmentHeadKey(SegmentId segment);
std::string SegmentPolicyKey(SegmentId segment);
std::string SegmentTokensKey(SegmentId segment, std::int64_t block);
std::string SegmentPrefix(SegmentId segment);  // of every key of a segment, in every family
// The same of one layer, in the families of clusters, index rows and links.
std::string SegmentLayerPrefix(SegmentId segment, std::int32_t layer);
std::string ClusterRowKey(SegmentId segment, const ClusterKey& key, ClusterRowKind kind);
std::string IndexRowKey(SegmentId segment, const ClusterKey& key);
std::string LinkRowKey(SegmentId segment, const ClusterKey& key);
std::string RegionKey(SegmentId segment, std::int64_t region);

struct ParsedClusterRowKey {
  ClusterKey key;
  ClusterRowKind kind;
};
absl::StatusOr<SessionId> ParseSessionKey(std::string_view key);
// nullopt: another row of the segment.
absl::StatusOr<std::optional<SegmentId>> ParseSegmentHeadKey(std::string_view key);
absl::StatusOr<ParsedClusterRowKey> ParseClusterRowKey(std::string_view key);
absl::StatusOr<ClusterKey> ParseIndexRowKey(std::string_view key);
absl::StatusOr<ClusterKey> ParseLinkRowKey(std::string_view key);
struct ParsedRegionKey {
  SegmentId segment;
  std::int64_t region = 0;
};
absl::StatusOr<ParsedRegionKey> ParseRegionKey(std::string_view key);

// ---- values ----
std::string EncodeSessionRow(const SessionRow& row);
absl::StatusOr<SessionRow> DecodeSessionRow(std::string_view bytes);
std::string EncodeSegmentRow(const SegmentRow& row);
absl::StatusOr<SegmentRow> DecodeSegmentRow(std::string_view bytes);
std::string EncodePolicyRow(const PolicyRow& row);
absl::StatusOr<PolicyRow> DecodePolicyRow(std::string_view bytes);
// Neighbouring one-entry records of one run (carried entries) are stored as one group.
std::string EncodeParts(const std::vector<Part>& parts, std::int64_t entry_bytes);
absl::StatusOr<std::vector<StoredPart>> DecodeParts(std::string_view bytes,
                                                    std::int64_t entry_bytes);
std::string EncodePositions(const Positions& positions);
absl::StatusOr<Positions> DecodePositions(std::string_view bytes);
std::string EncodeIndexRow(const IndexRow& row);
absl::StatusOr<IndexRow> DecodeIndexRow(const ClusterKey& key, std::string_view bytes);
// 1 to kLinksOfClusterMax links with counts of 1 to kLinkCountMax, each to another cluster.
std::string EncodeLinks(const std::vector<ClusterLink>& links);
absl::StatusOr<std::vector<ClusterLink>> DecodeLinks(std::string_view bytes);
std::string EncodeTokens(const std::vector<std::int32_t>& tokens);
absl::StatusOr<std::vector<std::int32_t>> DecodeTokens(std::string_view bytes);
std::string EncodeRegion(const RegionBits& bits);
absl::StatusOr<RegionBits> DecodeRegion(std::string_view bytes);
// One id: the upper bound of the ids that are reserved (family `config`, key kNextIdKey).
inline constexpr std::string_view kNextIdKey = "next_id";
std::string EncodeNextId(std::int64_t next_id);
absl::StatusOr<std::int64_t> DecodeNextId(std::string_view bytes);
// What a calibration found (family `config`). `model`: the name of the DeviceModel that was above
// the device; empty: none. A measurement of one never stands in for one of the other.
std::string DeviceProfileKey(std::string_view model);
inline constexpr std::string_view kDeviceProfileKeyPrefix = "device_profile";  // of all of them
std::string EncodeDeviceProfile(const DeviceProfile& profile);
absl::StatusOr<DeviceProfile> DecodeDeviceProfile(std::string_view bytes);

}  // namespace cairn::kv
