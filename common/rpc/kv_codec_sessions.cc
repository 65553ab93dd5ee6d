#include <utility>

#include <google/protobuf/util/time_util.h>

#include "common/base/check.h"
#include "common/rpc/kv_codec.h"

namespace cairn::rpc {
namespace {

using google::protobuf::util::TimeUtil;

// The last second that google.protobuf.Timestamp allows: the end of the year 9999.
constexpr std::int64_t kTimestampSecondsMax = 253402300799;

void LayoutToProto(const EntryLayout& layout, pb::EntryLayout* out) {
  out->set_layer_count(layout.layer_count);
  out->set_head_count(layout.head_count);
  out->set_head_dim(layout.head_dim);
  out->set_kv_format(static_cast<pb::KvFormat>(layout.kv_format));
}

absl::StatusOr<EntryLayout> LayoutFromProto(const pb::EntryLayout& layout) {
  EntryLayout out;
  out.layer_count = layout.layer_count();
  out.head_count = layout.head_count();
  out.head_dim = layout.head_dim();
  CAIRN_ASSIGN_OR_RETURN(out.kv_format, FormatFromProto("layout.kv_format", layout.kv_format()));
  const absl::Status valid = out.Validate();
  if (!valid.ok()) return Annotate(valid, "layout");
  return out;
}

void KeyToProto(const SegmentKey& key, pb::SegmentKey* out) {
  out->set_model_digest(key.model_digest);
  out->set_adapter_digest(key.adapter_digest);
  out->set_adapter_scale(key.adapter_scale);
  out->set_rope_parameters(key.rope_parameters);
  out->set_kv_format(static_cast<pb::KvFormat>(key.kv_format));
  out->set_sharing_domain(key.sharing_domain);
}

absl::StatusOr<SegmentKey> KeyFromProto(pb::SegmentKey* key) {
  SegmentKey out;
  CAIRN_ASSIGN_OR_RETURN(out.kv_format, FormatFromProto("key.kv_format", key->kv_format()));
  out.model_digest = std::move(*key->mutable_model_digest());
  out.adapter_digest = std::move(*key->mutable_adapter_digest());
  out.adapter_scale = key->adapter_scale();
  out.rope_parameters = std::move(*key->mutable_rope_parameters());
  out.sharing_domain = std::move(*key->mutable_sharing_domain());
  const absl::Status valid = out.Validate();
  if (!valid.ok()) return Annotate(valid, "key");
  return out;
}

// TimeUtil ends the process at a year of five digits, which a row on flash may have.
void MicrosToProto(std::int64_t time_us, google::protobuf::Timestamp* out) {
  constexpr std::int64_t kMicrosPerSecond = 1'000'000;
  constexpr std::int64_t kNanosPerMicro = 1000;
  out->set_seconds(time_us / kMicrosPerSecond);
  out->set_nanos(static_cast<std::int32_t>(time_us % kMicrosPerSecond * kNanosPerMicro));
}

absl::StatusOr<std::int64_t> MicrosFromProto(std::string_view field,
                                             const google::protobuf::Timestamp& time) {
  CAIRN_RETURN_IF_ERROR(CheckBetween(field, time.seconds(), 0, kTimestampSecondsMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween(field, time.nanos(), 0, 999'999'999));
  return TimeUtil::TimestampToMicroseconds(time);
}

absl::Status CheckUid(std::string_view field, const std::string& uid) {
  if (uid.empty() || std::ssize(uid) == kUidBytes) return absl::OkStatus();
  return InvalidArgument("{} has {} bytes: it must have {}, or none", field, uid.size(), kUidBytes);
}

absl::StatusOr<SessionLifetime> LifetimeFromProto(pb::SessionLifetime lifetime) {
  if (lifetime == pb::SESSION_LIFETIME_UNSPECIFIED) return SessionLifetime::kPermanent;
  if (pb::SessionLifetime_IsValid(lifetime)) return static_cast<SessionLifetime>(lifetime);
  return InvalidArgument("lifetime is {}: there is none of this number",
                         static_cast<int>(lifetime));
}

absl::StatusOr<AttachAttempt> AttemptFromProto(const std::string& owner, std::int64_t attempt_seq) {
  CAIRN_RETURN_IF_ERROR(CheckUid("owner", owner));
  const bool named = !owner.empty();
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("attempt_seq", attempt_seq, named ? 1 : 0, named ? INT64_MAX : 0));
  return AttachAttempt{owner, attempt_seq};
}

// The numbers of KvStats by the names of GetStatsResponse.
struct Counter {
  const char* name;
  std::int64_t KvStats::*value;
};
constexpr Counter kCounters[] = {
    {"flash_used_bytes", &KvStats::flash_used_bytes},
    {"flash_size_bytes", &KvStats::flash_size_bytes},
    {"dram_used_bytes", &KvStats::dram_used_bytes},
    {"dram_peak_bytes", &KvStats::dram_peak_bytes},
    {"row_bytes", &KvStats::row_bytes},
    {"read_fetch_bytes", &KvStats::read_fetch_bytes},
    {"read_fetch_count", &KvStats::read_fetch_count},
    {"read_index_bytes", &KvStats::read_index_bytes},
    {"read_meta_bytes", &KvStats::read_meta_bytes},
    {"read_place_bytes", &KvStats::read_place_bytes},
    {"read_hole_bytes", &KvStats::read_hole_bytes},
    {"write_pool_bytes", &KvStats::write_pool_bytes},
    {"write_log_bytes", &KvStats::write_log_bytes},
    {"write_relog_bytes", &KvStats::write_relog_bytes},
    {"write_split_bytes", &KvStats::write_split_bytes},
    {"write_index_bytes", &KvStats::write_index_bytes},
    {"read_defragment_bytes", &KvStats::read_defragment_bytes},
    {"write_defragment_bytes", &KvStats::write_defragment_bytes},
    {"write_meta_log_bytes", &KvStats::write_meta_log_bytes},
    {"write_meta_table_bytes", &KvStats::write_meta_table_bytes},
    {"index_row_bytes", &KvStats::index_row_bytes},
    {"spill_count", &KvStats::spill_count},
    {"checkpoint_count", &KvStats::checkpoint_count},
    {"append_bytes", &KvStats::append_bytes},
    {"lost_part_count", &KvStats::lost_part_count},
    {"unreadable_part_count", &KvStats::unreadable_part_count},
    {"arena_bytes", &KvStats::arena_bytes},
    {"cache_hit_count", &KvStats::cache_hit_count},
    {"cache_hit_bytes", &KvStats::cache_hit_bytes},
    {"cache_miss_count", &KvStats::cache_miss_count},
    {"cache_miss_bytes", &KvStats::cache_miss_bytes},
    {"cache_evicted_count", &KvStats::cache_evicted_count},
    {"cache_no_room_count", &KvStats::cache_no_room_count},
    {"leased_slot_count", &KvStats::leased_slot_count},
};

const google::protobuf::FieldDescriptor& FieldOf(const Counter& counter) {
  const auto* field = pb::GetStatsResponse::descriptor()->FindFieldByName(counter.name);
  CAIRN_CHECK(field != nullptr);
  return *field;
}

}  // namespace

absl::StatusOr<SessionRef> RefFromProto(std::int64_t session_id, const std::string& uid) {
  CAIRN_RETURN_IF_ERROR(CheckId("session_id", session_id));
  CAIRN_RETURN_IF_ERROR(CheckUid("session_uid", uid));
  return SessionRef{SessionId(session_id), uid};
}

pb::CreateSessionRequest ToProto(const CreateSession& request) {
  pb::CreateSessionRequest out;
  KeyToProto(request.key, out.mutable_key());
  LayoutToProto(request.layout, out.mutable_layout());
  out.set_parent_segment_id(request.parent_segment_id.value());
  out.set_parent_token_count(request.parent_token_count);
  out.set_parent_session_id(request.parent.id.value());
  out.set_parent_session_uid(request.parent.uid);
  out.set_label(request.label);
  out.set_session_uid(request.uid);
  out.set_lifetime(static_cast<pb::SessionLifetime>(request.lifetime));
  out.set_creator(request.creator);
  return out;
}

absl::StatusOr<CreateSession> FromProto(pb::CreateSessionRequest&& request) {
  CreateSession out;
  CAIRN_ASSIGN_OR_RETURN(out.key, KeyFromProto(request.mutable_key()));
  CAIRN_ASSIGN_OR_RETURN(out.layout, LayoutFromProto(request.layout()));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("label", request.label(), kLabelBytesMax));
  const bool forked = request.parent_segment_id() != 0;
  if (forked) {
    CAIRN_RETURN_IF_ERROR(CheckId("parent_segment_id", request.parent_segment_id()));
  }
  CAIRN_RETURN_IF_ERROR(CheckBetween("parent_token_count", request.parent_token_count(),
                                     forked ? 1 : 0, forked ? kPositionMax + 1 : 0));
  if (out.layout.kv_format != out.key.kv_format) {
    return InvalidArgument("layout.kv_format is {} but key.kv_format is {}",
                           KvFormatName(out.layout.kv_format), KvFormatName(out.key.kv_format));
  }
  CAIRN_RETURN_IF_ERROR(CheckUid("session_uid", request.session_uid()));
  CAIRN_RETURN_IF_ERROR(CheckUid("parent_session_uid", request.parent_session_uid()));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("parent_session_id", request.parent_session_id(), 0, forked ? INT64_MAX : 0));
  out.parent = {SessionId(request.parent_session_id()), request.parent_session_uid()};
  out.uid = request.session_uid();
  CAIRN_ASSIGN_OR_RETURN(out.lifetime, LifetimeFromProto(request.lifetime()));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("creator", request.creator(), kCreatorBytesMax));
  out.creator = std::move(*request.mutable_creator());
  out.parent_segment_id = SegmentId(request.parent_segment_id());
  out.parent_token_count = request.parent_token_count();
  out.label = std::move(*request.mutable_label());
  return out;
}

pb::OpenSessionRequest ToProto(const OpenRequest& request) {
  pb::OpenSessionRequest out;
  ToProto(request.session, &out);
  out.set_owner(request.attempt.owner);
  out.set_attempt_seq(request.attempt.number);
  return out;
}

absl::StatusOr<OpenRequest> FromProto(const pb::OpenSessionRequest& request) {
  OpenRequest out;
  CAIRN_ASSIGN_OR_RETURN(out.session, RefFromProto(request.session_id(), request.session_uid()));
  CAIRN_ASSIGN_OR_RETURN(out.attempt, AttemptFromProto(request.owner(), request.attempt_seq()));
  return out;
}

pb::ResumeSessionRequest ToProto(const ResumeRequest& request) {
  pb::ResumeSessionRequest out;
  out.set_session_id(request.session_id.value());
  out.set_epoch(request.epoch.value());
  out.set_owner(request.attempt.owner);
  out.set_attempt_seq(request.attempt.number);
  out.set_op_seq(request.op_seq.value());
  return out;
}

absl::StatusOr<ResumeRequest> FromProto(const pb::ResumeSessionRequest& request) {
  ResumeRequest out;
  CAIRN_RETURN_IF_ERROR(CheckId("session_id", request.session_id()));
  CAIRN_ASSIGN_OR_RETURN(out.attempt, AttemptFromProto(request.owner(), request.attempt_seq()));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("epoch", request.epoch(), out.attempt.owner.empty() ? 1 : 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(CheckBetween("op_seq", request.op_seq(), 0, INT64_MAX - 1));
  out.session_id = SessionId(request.session_id());
  out.epoch = Epoch(request.epoch());
  out.op_seq = OpSeq(request.op_seq());
  return out;
}

pb::SupersedeSessionRequest ToProto(const Supersession& request) {
  pb::SupersedeSessionRequest out;
  ToProto(request.session, &out);
  out.set_replacement_session_id(request.replacement.id.value());
  out.set_replacement_session_uid(request.replacement.uid);
  return out;
}

absl::StatusOr<Supersession> FromProto(const pb::SupersedeSessionRequest& request) {
  Supersession out;
  CAIRN_ASSIGN_OR_RETURN(out.session, RefFromProto(request.session_id(), request.session_uid()));
  CAIRN_RETURN_IF_ERROR(CheckId("replacement_session_id", request.replacement_session_id()));
  CAIRN_RETURN_IF_ERROR(CheckUid("replacement_session_uid", request.replacement_session_uid()));
  out.replacement = {SessionId(request.replacement_session_id()),
                     request.replacement_session_uid()};
  return out;
}

void ToProto(const Attachment& attachment, pb::Attachment* out) {
  out->set_epoch(attachment.epoch.value());
  out->set_token_count(attachment.token_count);
  out->set_op_seq(attachment.op_seq.value());
  LayoutToProto(attachment.layout, out->mutable_layout());
  KeyToProto(attachment.key, out->mutable_key());
  out->mutable_next_cluster_ids()->Add(attachment.next_cluster_ids.begin(),
                                       attachment.next_cluster_ids.end());
  out->set_segment_id(attachment.segment_id.value());
  out->set_parent_segment_id(attachment.parent_segment_id.value());
  out->set_segment_start(attachment.segment_start);
  out->set_policy_token_count(attachment.policy_token_count);
  out->set_session_uid(attachment.uid);
}

absl::StatusOr<Attachment> FromProto(SessionId session, pb::Attachment&& attachment) {
  Attachment out;
  CAIRN_RETURN_IF_ERROR(CheckId("epoch", attachment.epoch()));
  CAIRN_RETURN_IF_ERROR(CheckBetween("token_count", attachment.token_count(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(CheckBetween("op_seq", attachment.op_seq(), 0, INT64_MAX - 1));
  CAIRN_ASSIGN_OR_RETURN(out.layout, LayoutFromProto(attachment.layout()));
  CAIRN_ASSIGN_OR_RETURN(out.key, KeyFromProto(attachment.mutable_key()));
  CAIRN_RETURN_IF_ERROR(CheckNextIds(attachment.next_cluster_ids()));
  CAIRN_RETURN_IF_ERROR(CheckBetween("segment_id", attachment.segment_id(), 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("parent_segment_id", attachment.parent_segment_id(), 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("segment_start", attachment.segment_start(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("policy_token_count", attachment.policy_token_count(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(CheckUid("session_uid", attachment.session_uid()));
  out.session_id = session;
  out.uid = attachment.session_uid();
  out.epoch = Epoch(attachment.epoch());
  out.token_count = attachment.token_count();
  out.op_seq = OpSeq(attachment.op_seq());
  out.next_cluster_ids.assign(attachment.next_cluster_ids().begin(),
                              attachment.next_cluster_ids().end());
  out.segment_id = SegmentId(attachment.segment_id());
  out.parent_segment_id = SegmentId(attachment.parent_segment_id());
  out.segment_start = attachment.segment_start();
  out.policy_token_count = attachment.policy_token_count();
  return out;
}

void ToProto(const SessionInfo& info, pb::SessionInfo* out) {
  out->set_session_id(info.session_id.value());
  out->set_session_uid(info.uid);
  out->set_label(info.label);
  out->set_token_count(info.token_count);
  out->set_flash_bytes(info.flash_bytes);
  MicrosToProto(info.create_time_us, out->mutable_create_time());
  if (info.checkpoint_time_us != 0) {
    MicrosToProto(info.checkpoint_time_us, out->mutable_checkpoint_time());
  }
  KeyToProto(info.key, out->mutable_key());
  LayoutToProto(info.layout, out->mutable_layout());
  out->set_attached(info.attached);
  out->set_lifetime(static_cast<pb::SessionLifetime>(info.lifetime));
  out->set_creator(info.creator);
  out->set_own_flash_bytes(info.own_flash_bytes);
  out->set_shared_flash_bytes(info.shared_flash_bytes);
}

absl::StatusOr<SessionInfo> FromProto(pb::SessionInfo&& info) {
  SessionInfo out;
  CAIRN_RETURN_IF_ERROR(CheckId("session_id", info.session_id()));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("label", info.label(), kLabelBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("token_count", info.token_count(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(CheckBetween("flash_bytes", info.flash_bytes(), 0, INT64_MAX));
  CAIRN_ASSIGN_OR_RETURN(out.create_time_us, MicrosFromProto("create_time", info.create_time()));
  CAIRN_ASSIGN_OR_RETURN(out.checkpoint_time_us,
                         MicrosFromProto("checkpoint_time", info.checkpoint_time()));
  CAIRN_ASSIGN_OR_RETURN(out.key, KeyFromProto(info.mutable_key()));
  CAIRN_ASSIGN_OR_RETURN(out.layout, LayoutFromProto(info.layout()));
  CAIRN_RETURN_IF_ERROR(CheckUid("session_uid", info.session_uid()));
  out.session_id = SessionId(info.session_id());
  out.uid = info.session_uid();
  out.label = std::move(*info.mutable_label());
  out.token_count = info.token_count();
  out.flash_bytes = info.flash_bytes();
  out.attached = info.attached();
  CAIRN_ASSIGN_OR_RETURN(out.lifetime, LifetimeFromProto(info.lifetime()));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("creator", info.creator(), kCreatorBytesMax));
  out.creator = std::move(*info.mutable_creator());
  CAIRN_RETURN_IF_ERROR(CheckBetween("own_flash_bytes", info.own_flash_bytes(), 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("shared_flash_bytes", info.shared_flash_bytes(), 0, INT64_MAX));
  out.own_flash_bytes = info.own_flash_bytes();
  out.shared_flash_bytes = info.shared_flash_bytes();
  return out;
}

void ToProto(const KvStats& stats, pb::GetStatsResponse* out) {
  out->set_io_engine(stats.io_engine);
  out->set_attached_count(stats.attached_count);
  for (const Counter& counter : kCounters) {
    out->GetReflection()->SetInt64(out, &FieldOf(counter), stats.*counter.value);
  }
}

absl::StatusOr<KvStats> FromProto(const pb::GetStatsResponse& stats) {
  constexpr std::int64_t kEngineNameBytesMax = 64;
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("io_engine", stats.io_engine(), kEngineNameBytesMax));
  KvStats out;
  out.io_engine = stats.io_engine();
  out.attached_count = stats.attached_count();
  for (const Counter& counter : kCounters) {
    out.*counter.value = stats.GetReflection()->GetInt64(stats, &FieldOf(counter));
  }
  return out;
}

absl::StatusOr<SealedSegment> FromProto(const pb::SealSessionResponse& response) {
  CAIRN_RETURN_IF_ERROR(CheckBetween("segment_id", response.segment_id(), 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(CheckBetween("token_count", response.token_count(), 0, kPositionMax + 1));
  return SealedSegment{SegmentId(response.segment_id()), response.token_count()};
}

}  // namespace cairn::rpc
