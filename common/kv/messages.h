// The operations of the kv protocol as plain values: what the KV node's engine takes and answers,
// and what the compute node sends and gets, whether a socket lies between them or not.
// proto/cairn/kv/v1/kv.proto says what each means; the names are the same. Values; not
// synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "common/base/status.h"
#include "common/base/strong_id.h"
#include "common/kv/kv_format.h"
#include "common/kv/positions.h"

namespace cairn {

using AppId = StrongId<struct AppIdTag>;
using SessionId = StrongId<struct SessionIdTag>;
using SegmentId = StrongId<struct SegmentIdTag>;
using PartId = StrongId<struct PartIdTag>;
using ClusterId = StrongId<struct ClusterIdTag>;
using Epoch = StrongId<struct EpochTag>;
using OpSeq = StrongId<struct OpSeqTag>;
using RequestId = StrongId<struct RequestIdTag>;

// The app of everybody who may open the socket, until the configuration tells apps apart.
inline constexpr AppId kDefaultApp{1};
// Instead of a KV head: a cluster of all heads.
inline constexpr std::int32_t kAllHeads = -1;
// Instead of a cluster whose delayed-split buffer it is: the window.
inline constexpr ClusterId kWindowBuffer{-1};

// Limits of the protocol. The daemon refuses what is above them; GetCapabilities tells them.
inline constexpr std::int32_t kLayerCountMax = 1024;
inline constexpr std::int32_t kHeadCountMax = 1024;
inline constexpr std::int32_t kHeadDimMax = 1024;
inline constexpr std::int64_t kLabelBytesMax = 256;
inline constexpr std::int64_t kCreatorBytesMax = 128;
inline constexpr std::int64_t kIndexRowBytesMax = 4096;
inline constexpr std::int64_t kPolicyStateBytesMax = std::int64_t{4} << 20;
inline constexpr std::int64_t kRandomStateBytesMax = 4096;
inline constexpr std::int64_t kRopeParametersBytesMax = 1024;
inline constexpr std::int64_t kDigestBytes = 32;
inline constexpr std::int64_t kUidBytes = 16;  // of a session, and of an owner
inline constexpr std::int32_t kFetchClusterCountMax = 4096;
inline constexpr std::int32_t kGetTokensCountMax = 65536;
inline constexpr std::int64_t kMessageBytesMax = std::int64_t{16} << 20;
inline constexpr std::int64_t kFetchBytesMax = std::int64_t{8} << 20;
inline constexpr std::int32_t kFetchesInFlightMax = 16;

// Shapes of one session's entries.
struct EntryLayout {
  std::int32_t layer_count = 0;
  std::int32_t head_count = 0;
  std::int32_t head_dim = 0;
  KvFormat kv_format = KvFormat::kF16;

  // Bytes of one entry of a cluster of `head` (kAllHeads: of all heads together).
  std::int64_t EntryBytes(std::int32_t head) const {
    return KvEntryBytes(kv_format, head_dim) * (head == kAllHeads ? head_count : 1);
  }
  // Bytes of one token in all layers.
  std::int64_t TokenBytes() const { return EntryBytes(kAllHeads) * layer_count; }
  // INVALID_ARGUMENT when a field is out of range.
  absl::Status Validate() const;
  friend bool operator==(const EntryLayout&, const EntryLayout&) = default;
};

// All that must be equal for two sessions to share entries.
struct SegmentKey {
  std::string model_digest;    // kDigestBytes
  std::string adapter_digest;  // kDigestBytes or empty
  float adapter_scale = 0;
  std::string rope_parameters;
  KvFormat kv_format = KvFormat::kF16;
  std::string sharing_domain;

  absl::Status Validate() const;
  friend bool operator==(const SegmentKey&, const SegmentKey&) = default;
};

// Names a cluster of one layer.
struct ClusterRef {
  std::int32_t head = 0;
  ClusterId cluster_id;
  friend auto operator<=>(const ClusterRef&, const ClusterRef&) = default;
};

// ---- changing operations ----
struct ClusterEntries {
  ClusterRef cluster;
  Positions positions;
  std::string entries;
};
struct Append {
  std::int32_t layer = 0;
  std::vector<ClusterEntries> clusters;
};

struct ChildCluster {
  ClusterId cluster_id;
  Positions positions;
};
struct Replace {
  std::int32_t layer = 0;
  std::int32_t head = 0;
  std::vector<ClusterId> parent_ids;
  std::vector<ChildCluster> children;
  Positions brought_positions;
  std::string brought_entries;
  Positions evicted_positions;
};

struct Evict {
  std::int32_t layer = 0;
  std::int32_t head = 0;
  Positions positions;
};

struct IndexRow {
  ClusterRef cluster;
  std::string row;
  bool stale = false;
  std::int64_t entry_count = 0;
};
struct PutIndexRows {
  std::int32_t layer = 0;
  std::vector<IndexRow> rows;
};

struct PutPolicyState {
  std::int32_t version = 0;
  std::string state;
};

struct CarriedEntries {
  std::int32_t head = 0;
  ClusterId buffer_cluster_id;
  Positions positions;
  Positions brought_positions;
  std::string entries;
};
struct StageCarried {
  std::int32_t layer = 0;
  std::vector<CarriedEntries> carried;
};

struct Checkpoint {
  std::int64_t token_count = 0;
  bool seal = false;
  std::vector<std::int32_t> token_ids;
  std::int64_t token_ids_start = 0;
  std::string random_state;
  std::vector<std::int64_t> next_cluster_ids;
};

using ChangingOperation =
    std::variant<Append, Replace, Evict, PutIndexRows, PutPolicyState, StageCarried, Checkpoint>;

// Bytes that the operation holds: what a replay buffer and an inbox count.
std::int64_t OperationBytes(const ChangingOperation& operation);

// ---- reads ----
struct Fetch {
  std::int32_t layer = 0;
  std::vector<ClusterRef> clusters;
  bool with_positions = false;
};
struct GetIndex {
  std::int32_t layer = 0;
};
// The same rows as records (index_record.h), where they lie.
struct FetchIndex {
  std::int32_t layer = 0;
  // With records that say which older ones count for nothing: FindVisibleRecords makes use of them.
  bool only_visible = false;
};
struct GetCarried {
  std::int32_t layer = 0;
};
struct GetTokens {
  std::int64_t first = 0;
  std::int32_t count = 0;
};
struct GetPolicyState {};
struct GetClusters {
  std::int32_t layer = 0;
};
using ReadOperation =
    std::variant<Fetch, FetchIndex, GetIndex, GetCarried, GetTokens, GetPolicyState, GetClusters>;

// ---- replies ----
enum class Direction : std::uint8_t { kUp = 1, kDown = 2 };

// Where bytes lie in the KV node's shared memory; granule 0: they do not. arena_layout.h says what
// the generation is.
struct ArenaRange {
  std::int32_t granule_id = 0;
  std::int64_t offset_bytes = 0;
  std::int64_t generation = 0;
  // Of the KV node's memory in another process: where the granule is mapped.
  const std::byte* granule = nullptr;
};

// Consecutive entries of one part. `owner` keeps `bytes` alive: in the arena it is the lease.
struct Span {
  PartId part_id;  // 0: no place on flash yet
  std::int64_t first_entry = 0;
  std::int64_t entry_count = 0;
  Direction direction = Direction::kUp;
  Positions positions;
  std::span<const std::byte> bytes;
  ArenaRange arena;
  std::shared_ptr<const void> owner;

  // Whether `bytes` were what they should be until now. False only behind a lost connection, when
  // the KV node ended the lease and used the memory again: what was computed from `bytes` is void.
  bool WasIntact() const;

  // The i-th entry of the span.
  const std::byte* Entry(std::int64_t i, std::int64_t entry_bytes) const {
    const std::int64_t slot = direction == Direction::kUp ? i : entry_count - 1 - i;
    return bytes.data() + slot * entry_bytes;
  }
};
enum class FetchOutcome : std::uint8_t { kFound = 1, kUnknown = 2, kLost = 3, kUnreadable = 4 };
struct FetchedCluster {
  ClusterRef cluster;
  FetchOutcome outcome = FetchOutcome::kFound;
  absl::InlinedVector<Span, 1> spans;  // mostly one
};
// To FetchIndex: one cluster of all heads, whose entries are records; of two of the same cluster
// the later one counts, and those that are damaged are left out. With only_visible it is lost where
// an older record might show instead.
struct FetchReply {
  std::vector<FetchedCluster> clusters;
  std::int64_t read_bytes = 0;  // of flash, for this answer
};
struct IndexReply {
  std::vector<IndexRow> rows;
  std::int64_t read_bytes = 0;  // of flash, for this answer
};
struct CarriedReply {
  std::vector<CarriedEntries> carried;
  std::int64_t read_bytes = 0;  // of flash, for this answer
};
struct TokensReply {
  std::vector<std::int32_t> token_ids;
};
struct PolicyStateReply {
  std::int32_t version = 0;
  std::string state;
  std::string random_state;
};
struct ClusterInfo {
  ClusterRef cluster;
  Positions positions;
};
struct ClustersReply {
  std::vector<ClusterInfo> clusters;
};
using ReadReply = std::variant<FetchReply, IndexReply, CarriedReply, TokensReply, PolicyStateReply,
                               ClustersReply>;

struct Checkpointed {
  std::int64_t token_count = 0;
  SegmentId sealed_segment_id;
};

// ---- sessions ----
// Names a session. Its number may come again, in another store or in an older copy of the store
// that is put back; its uid does not.
struct SessionRef {
  SessionId id;
  std::string uid{};  // kUidBytes; empty: not known, the number alone has to do

  friend bool operator==(const SessionRef&, const SessionRef&) = default;
};

// How long a session stays that nobody deletes; kv.proto's SessionLifetime says more.
enum class SessionLifetime : std::uint8_t {
  kPermanent = 1,
  kFromCheckpoint = 2,  // ephemeral before its first checkpoint
  kEphemeral = 3,       // not for long once nobody is attached
};

struct CreateSession {
  SegmentKey key;
  EntryLayout layout;
  SegmentId parent_segment_id;  // 0: none
  std::int64_t parent_token_count = 0;
  SessionRef parent;  // whose segment that is; id 0: not checked
  std::string label;
  std::string uid;  // of the new session; empty: the KV node makes one
  SessionLifetime lifetime = SessionLifetime::kPermanent;
  std::string creator;
};

// Tells an attempt to attach that is made again from one of another owner.
struct AttachAttempt {
  std::string owner;        // kUidBytes random bytes; empty: nobody's, it cannot be made again
  std::int64_t number = 0;  // of the owner's attempts on this session: each is above those before
};
struct OpenRequest {
  SessionRef session;
  AttachAttempt attempt;
};
struct ResumeRequest {
  SessionId session_id;
  Epoch epoch;  // of the attachment that was lost; without an owner it says that nobody came since
  AttachAttempt attempt;
  OpSeq op_seq;  // what checkpoints were acknowledged: a store that has less is an older copy
};

struct Attachment {
  SessionId session_id;
  std::string uid;  // of the session
  Epoch epoch;
  std::int64_t token_count = 0;
  OpSeq op_seq;
  EntryLayout layout;
  SegmentKey key;
  std::vector<std::int64_t> next_cluster_ids;
  SegmentId segment_id;
  SegmentId parent_segment_id;
  std::int64_t segment_start = 0;
  std::int64_t policy_token_count = 0;
};

struct SessionInfo {
  SessionId session_id;
  std::string uid;  // empty: the session is of an older release, and nobody attached since
  std::string label;
  std::int64_t token_count = 0;
  std::int64_t flash_bytes = 0;
  std::int64_t create_time_us = 0;      // since the Unix epoch
  std::int64_t checkpoint_time_us = 0;  // 0: never
  SegmentKey key;
  EntryLayout layout;
  bool attached = false;
  SessionLifetime lifetime = SessionLifetime::kPermanent;
  std::string creator;
  // With ListDetail::kFlashUse.
  std::int64_t own_flash_bytes = 0;     // what deleting it gives back
  std::int64_t shared_flash_bytes = 0;  // what others need too
};

enum class ListDetail : std::uint8_t { kRows, kFlashUse };

// The session that was listed.
inline SessionRef RefTo(const SessionInfo& info) { return {info.session_id, info.uid}; }
// Whether a session of this uid, which has the number, may be the one that is named.
inline bool IsMeant(const SessionRef& ref, const std::string& uid) {
  return ref.uid.empty() || uid.empty() || ref.uid == uid;
}

struct SealedSegment {
  SegmentId segment_id;
  std::int64_t token_count = 0;
};

// Gives a session what another one holds of the same tokens, in place of its own.
struct Supersession {
  SessionRef session;
  SessionRef replacement;  // there is none of this number afterwards
};

// Behind the name of the I/O engine of a store that the compute node has for itself.
inline constexpr std::string_view kEmbeddedSuffix = "+embedded";

// Counters since the start of the engine; see GetStatsResponse.
struct KvStats {
  std::string io_engine;
  std::int64_t flash_used_bytes = 0;
  std::int64_t flash_size_bytes = 0;
  std::int64_t dram_used_bytes = 0;
  std::int64_t dram_peak_bytes = 0;
  std::int64_t row_bytes = 0;
  std::int64_t read_fetch_bytes = 0;
  std::int64_t read_fetch_count = 0;
  std::int64_t read_index_bytes = 0;
  std::int64_t read_meta_bytes = 0;
  std::int64_t read_place_bytes = 0;
  std::int64_t read_hole_bytes = 0;
  std::int64_t write_pool_bytes = 0;
  std::int64_t write_log_bytes = 0;
  std::int64_t write_relog_bytes = 0;
  std::int64_t write_split_bytes = 0;
  std::int64_t write_index_bytes = 0;
  std::int64_t read_defragment_bytes = 0;
  std::int64_t write_defragment_bytes = 0;
  std::int64_t write_meta_log_bytes = 0;
  std::int64_t write_meta_table_bytes = 0;
  std::int64_t index_row_bytes = 0;
  std::int64_t spill_count = 0;
  std::int64_t checkpoint_count = 0;
  std::int64_t append_bytes = 0;
  std::int64_t lost_part_count = 0;
  std::int64_t unreadable_part_count = 0;
  std::int32_t attached_count = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t cache_hit_count = 0;
  std::int64_t cache_hit_bytes = 0;
  std::int64_t cache_miss_count = 0;
  std::int64_t cache_miss_bytes = 0;
  std::int64_t cache_evicted_count = 0;
  std::int64_t cache_no_room_count = 0;
  std::int64_t leased_slot_count = 0;
};

}  // namespace cairn
