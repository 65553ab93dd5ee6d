// Both directions between the messages of proto/cairn/kv/v1/kv.proto and the values of
// common/kv/messages.h, for the KV node's service and the compute node's client.
//
// Threading:  pure functions.
// Ownership:  functions that take a message by && or pointer move its byte strings out. A
//             FetchReply made from a message points into it and keeps it alive.
// Errors:     INVALID_ARGUMENT naming the field. Every number from the wire is checked against the
//             protocol's limits; what depends on a session's shapes is the engine's to check.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cairn/kv/v1/kv.pb.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "common/rpc/wire_check.h"

namespace cairn::rpc {

// ---- sessions: kv_codec_sessions.cc ----
absl::StatusOr<SessionRef> RefFromProto(std::int64_t session_id, const std::string& uid);
// Messages that name a session.
template <typename Message>
concept NamesSession = requires(const Message& message) {
  message.session_id();
  message.session_uid();
};
template <NamesSession Message>
absl::StatusOr<SessionRef> FromProto(const Message& message) {
  return RefFromProto(message.session_id(), message.session_uid());
}
template <NamesSession Message>
void ToProto(const SessionRef& session, Message* out) {
  out->set_session_id(session.id.value());
  out->set_session_uid(session.uid);
}

pb::CreateSessionRequest ToProto(const CreateSession& request);
absl::StatusOr<CreateSession> FromProto(pb::CreateSessionRequest&& request);
pb::OpenSessionRequest ToProto(const OpenRequest& request);
absl::StatusOr<OpenRequest> FromProto(const pb::OpenSessionRequest& request);
pb::ResumeSessionRequest ToProto(const ResumeRequest& request);
absl::StatusOr<ResumeRequest> FromProto(const pb::ResumeSessionRequest& request);
pb::SupersedeSessionRequest ToProto(const Supersession& request);
absl::StatusOr<Supersession> FromProto(const pb::SupersedeSessionRequest& request);

void ToProto(const Attachment& attachment, pb::Attachment* out);
absl::StatusOr<Attachment> FromProto(SessionId session, pb::Attachment&& attachment);

void ToProto(const SessionInfo& info, pb::SessionInfo* out);
absl::StatusOr<SessionInfo> FromProto(pb::SessionInfo&& info);

void ToProto(const KvStats& stats, pb::GetStatsResponse* out);
absl::StatusOr<KvStats> FromProto(const pb::GetStatsResponse& stats);

absl::StatusOr<SealedSegment> FromProto(const pb::SealSessionResponse& response);

// ---- operations: kv_codec_operations.cc ----
enum class OperationKind { kNone, kHello, kChanging, kRead, kRelease };
OperationKind KindOf(const pb::ChannelRequest& request);

void SetOperation(ChangingOperation operation, pb::ChannelRequest* request);
void SetOperation(const ReadOperation& operation, pb::ChannelRequest* request);
// REQUIRES: KindOf(*request) is kChanging.
absl::StatusOr<ChangingOperation> TakeChangingOperation(pb::ChannelRequest* request);
// REQUIRES: KindOf(request) is kRead.
absl::StatusOr<ReadOperation> ReadOperationFromProto(const pb::ChannelRequest& request);

// ---- replies: kv_codec_replies.cc ----
// Finds the memory of a range that a reply names.
struct ArenaMemory {
  const std::byte* granule = nullptr;  // where the whole granule is mapped
  std::shared_ptr<const void> owner;   // keeps it mapped
};
class ArenaResolver {
 public:
  virtual ~ArenaResolver() = default;
  // INVALID_ARGUMENT unless the granule is known and holds the range.
  virtual absl::StatusOr<ArenaMemory> Resolve(std::int32_t granule_id, std::int64_t offset_bytes,
                                              std::int64_t size_bytes) = 0;
};
// REQUIRES: not a FetchReply: fetch_frame.h has these, without copying the entries.
void SetReply(ReadReply reply, pb::ChannelReply* out);
void SetFailure(const absl::Status& status, pb::ChannelReply* out);
absl::Status FailureStatus(const pb::Failure& failure);
void ToProto(const Checkpointed& checkpointed, pb::Checkpointed* out);
absl::StatusOr<Checkpointed> FromProto(const pb::Checkpointed& checkpointed);
// The answer to a read. A Failure becomes its status; INTERNAL for a message that answers no read.
// `arena` null: the caller has no shared memory. Spans in the arena hold `lease` too.
absl::StatusOr<ReadReply> ReadReplyFromProto(const std::shared_ptr<pb::ChannelReply>& reply,
                                             ArenaResolver* arena = nullptr,
                                             const std::shared_ptr<const void>& lease = nullptr);
// Whether a span of the reply lies in the arena.
bool HasArenaSpans(const pb::ChannelReply& reply);

// Shared by operations and replies: kv_codec_operations.cc.
void ToProto(IndexRow row, pb::IndexRow* out);
absl::StatusOr<IndexRow> RowFromProto(pb::IndexRow& row);
void ToProto(CarriedEntries carried, pb::CarriedEntries* out);
// In an operation `entries` are those of brought_positions; in a reply, of all positions.
enum class CarriedUse { kOperation, kReply };
absl::StatusOr<CarriedEntries> CarriedFromProto(pb::CarriedEntries& carried, CarriedUse use);

}  // namespace cairn::rpc
