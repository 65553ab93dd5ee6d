#include <utility>

#include "common/base/check.h"
#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"

namespace cairn::rpc {
namespace {

using ReplyCase = pb::ChannelReply::ReplyCase;

struct ReplyToProto {
  pb::ChannelReply* out;

  void operator()(const FetchReply&) const { CAIRN_CHECK(false && "it is FrameFetchReply's"); }
  void operator()(IndexReply& reply) const {
    pb::IndexReply* index = out->mutable_index();
    index->set_read_bytes(reply.read_bytes);
    for (IndexRow& row : reply.rows) ToProto(std::move(row), index->add_rows());
  }
  void operator()(CarriedReply& reply) const {
    pb::CarriedReply* carried = out->mutable_carried();
    carried->set_read_bytes(reply.read_bytes);
    for (CarriedEntries& entries : reply.carried) {
      ToProto(std::move(entries), carried->add_carried());
    }
  }
  void operator()(const TokensReply& reply) const {
    out->mutable_tokens()->mutable_token_ids()->Add(reply.token_ids.begin(), reply.token_ids.end());
  }
  void operator()(PolicyStateReply& reply) const {
    pb::PolicyStateReply* state = out->mutable_policy_state();
    state->set_version(reply.version);
    state->set_state(std::move(reply.state));
    state->set_random_state(std::move(reply.random_state));
  }
  void operator()(const ClustersReply& reply) const {
    pb::ClustersReply* clusters = out->mutable_clusters();
    for (const ClusterInfo& info : reply.clusters) {
      pb::ClusterInfo* message = clusters->add_clusters();
      ClusterToProto(info.cluster, message);
      PositionsToProto(info.positions, message->mutable_positions());
    }
  }
};

absl::Status CheckSpanCounts(const pb::Span& span, std::int64_t position_count) {
  CAIRN_RETURN_IF_ERROR(CheckBetween("part_id", span.part_id(), 0, INT64_MAX));
  CAIRN_RETURN_IF_ERROR(CheckBetween("first_entry", span.first_entry(), 0, kPositionMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("entry_count", span.entry_count(), 0, kPositionMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("direction", span.direction(), 1, 2));
  const std::int64_t bytes =
      span.has_arena() ? span.arena().size_bytes() : std::ssize(span.entries());
  CAIRN_RETURN_IF_ERROR(CheckEntryBytes("entries", bytes, span.entry_count()));
  if (position_count != 0 && position_count != span.entry_count()) {
    return InvalidArgument("positions has {} positions for {} entries", position_count,
                           span.entry_count());
  }
  return absl::OkStatus();
}

// Keeps ranges of one granule: its mapping and the right to read it.
struct RangeOwner {
  std::shared_ptr<const void> memory;
  std::shared_ptr<const void> lease;
};

// What the spans of one reply are made with.
struct ReplySource {
  std::shared_ptr<const pb::ChannelReply> reply;
  ArenaResolver* arena = nullptr;
  std::shared_ptr<const void> lease;
  std::shared_ptr<const RangeOwner> last_owner;  // neighbours mostly lie in the same granule
};

absl::Status TakeRange(const pb::ArenaRange& range, ReplySource& source, Span& span) {
  if (source.arena == nullptr) return InvalidArgument("arena: this client has no shared memory");
  CAIRN_ASSIGN_OR_RETURN(
      ArenaMemory memory,
      source.arena->Resolve(range.granule_id(), range.offset_bytes(), range.size_bytes()));
  span.arena = {range.granule_id(), range.offset_bytes(), range.generation(), memory.granule};
  span.bytes = {memory.granule + range.offset_bytes(),
                static_cast<std::size_t>(range.size_bytes())};
  if (source.last_owner == nullptr || source.last_owner->memory != memory.owner) {
    source.last_owner =
        std::make_shared<const RangeOwner>(RangeOwner{std::move(memory.owner), source.lease});
  }
  span.owner = source.last_owner;
  return absl::OkStatus();
}

absl::StatusOr<Span> SpanFromProto(const pb::Span& span, ReplySource& source) {
  Span out;
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", span.positions()));
  CAIRN_RETURN_IF_ERROR(CheckSpanCounts(span, out.positions.count()));
  out.part_id = PartId(span.part_id());
  out.first_entry = span.first_entry();
  out.entry_count = span.entry_count();
  out.direction = static_cast<Direction>(span.direction());
  if (span.has_arena()) {
    const absl::Status status = TakeRange(span.arena(), source, out);
    if (!status.ok()) return Annotate(status, "arena");
    return out;
  }
  out.bytes = std::as_bytes(std::span<const char>(span.entries().data(), span.entries().size()));
  out.owner = source.reply;
  return out;
}

absl::StatusOr<FetchedCluster> FetchedFromProto(const pb::FetchedCluster& cluster,
                                                ReplySource& source) {
  FetchedCluster out;
  CAIRN_ASSIGN_OR_RETURN(out.cluster, ClusterFromProto(cluster));
  CAIRN_RETURN_IF_ERROR(CheckBetween("outcome", cluster.outcome(), 1, 4));
  out.outcome = static_cast<FetchOutcome>(cluster.outcome());
  CAIRN_RETURN_IF_ERROR(
      ConvertAll("spans", cluster.spans(), &out.spans,
                 [&source](const pb::Span& span) { return SpanFromProto(span, source); }));
  return out;
}

absl::StatusOr<ReadReply> FetchFromProto(ReplySource source) {
  FetchReply out;
  const pb::FetchReply& fetch = source.reply->fetch();
  CAIRN_RETURN_IF_ERROR(CheckCountMax("clusters", fetch.clusters_size(), kFetchClusterCountMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("read_bytes", fetch.read_bytes(), 0, INT64_MAX));
  out.read_bytes = fetch.read_bytes();
  CAIRN_RETURN_IF_ERROR(ConvertAll(
      "clusters", fetch.clusters(), &out.clusters,
      [&source](const pb::FetchedCluster& cluster) { return FetchedFromProto(cluster, source); }));
  return out;
}

absl::StatusOr<ReadReply> IndexFromProto(pb::IndexReply* index) {
  if (index->spans_size() != 0) {
    return InvalidArgument("spans: rows were asked for, not records");
  }
  IndexReply out;
  CAIRN_RETURN_IF_ERROR(CheckBetween("read_bytes", index->read_bytes(), 0, INT64_MAX));
  out.read_bytes = index->read_bytes();
  CAIRN_RETURN_IF_ERROR(ConvertAll("rows", *index->mutable_rows(), &out.rows, RowFromProto));
  return out;
}

absl::StatusOr<ReadReply> AllCarriedFromProto(pb::CarriedReply* carried) {
  CarriedReply out;
  CAIRN_RETURN_IF_ERROR(CheckBetween("read_bytes", carried->read_bytes(), 0, INT64_MAX));
  out.read_bytes = carried->read_bytes();
  CAIRN_RETURN_IF_ERROR(ConvertAll(
      "carried", *carried->mutable_carried(), &out.carried,
      [](pb::CarriedEntries& entries) { return CarriedFromProto(entries, CarriedUse::kReply); }));
  return out;
}

absl::StatusOr<ReadReply> PolicyStateFromProto(pb::PolicyStateReply* state) {
  CAIRN_RETURN_IF_ERROR(CheckBetween("version", state->version(), 0, INT32_MAX));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("state", state->state(), kPolicyStateBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("random_state", state->random_state(), kRandomStateBytesMax));
  return PolicyStateReply{state->version(), std::move(*state->mutable_state()),
                          std::move(*state->mutable_random_state())};
}

absl::StatusOr<ReadReply> TokensFromProto(const pb::TokensReply& tokens) {
  CAIRN_RETURN_IF_ERROR(CheckCountMax("token_ids", tokens.token_ids_size(), kGetTokensCountMax));
  TokensReply out;
  out.token_ids.assign(tokens.token_ids().begin(), tokens.token_ids().end());
  return out;
}

absl::StatusOr<ClusterInfo> InfoFromProto(const pb::ClusterInfo& info) {
  ClusterInfo out;
  CAIRN_ASSIGN_OR_RETURN(out.cluster, ClusterFromProto(info));
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", info.positions()));
  return out;
}

absl::StatusOr<ReadReply> ClustersFromProto(const pb::ClustersReply& clusters) {
  ClustersReply out;
  CAIRN_RETURN_IF_ERROR(ConvertAll("clusters", clusters.clusters(), &out.clusters, InfoFromProto));
  return out;
}

}  // namespace

bool HasArenaSpans(const pb::ChannelReply& reply) {
  for (const pb::FetchedCluster& cluster : reply.fetch().clusters()) {
    for (const pb::Span& span : cluster.spans()) {
      if (span.has_arena()) return true;
    }
  }
  return false;
}

void SetReply(ReadReply reply, pb::ChannelReply* out) { std::visit(ReplyToProto{out}, reply); }

void SetFailure(const absl::Status& status, pb::ChannelReply* out) {
  out->mutable_failure()->set_code(static_cast<int>(status.code()));
  out->mutable_failure()->set_message(CleanMessage(ToStd(status.message())));
}

absl::Status FailureStatus(const pb::Failure& failure) {
  return {FailureCodeFromNumber(failure.code()), failure.message()};
}

void ToProto(const Checkpointed& checkpointed, pb::Checkpointed* out) {
  out->set_token_count(checkpointed.token_count);
  out->set_sealed_segment_id(checkpointed.sealed_segment_id.value());
}

absl::StatusOr<Checkpointed> FromProto(const pb::Checkpointed& checkpointed) {
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("token_count", checkpointed.token_count(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("sealed_segment_id", checkpointed.sealed_segment_id(), 0, INT64_MAX));
  return Checkpointed{checkpointed.token_count(), SegmentId(checkpointed.sealed_segment_id())};
}

absl::StatusOr<ReadReply> ReadReplyFromProto(const std::shared_ptr<pb::ChannelReply>& reply,
                                             ArenaResolver* arena,
                                             const std::shared_ptr<const void>& lease) {
  switch (reply->reply_case()) {
    case ReplyCase::kFetch:
      return FetchFromProto({reply, arena, lease, nullptr});
    case ReplyCase::kIndex:
      return IndexFromProto(reply->mutable_index());
    case ReplyCase::kCarried:
      return AllCarriedFromProto(reply->mutable_carried());
    case ReplyCase::kTokens:
      return TokensFromProto(reply->tokens());
    case ReplyCase::kPolicyState:
      return PolicyStateFromProto(reply->mutable_policy_state());
    case ReplyCase::kClusters:
      return ClustersFromProto(reply->clusters());
    case ReplyCase::kFailure:
      return FailureStatus(reply->failure());
    default:
      return Internal("reply {} of the KV node answers no read",
                      static_cast<int>(reply->reply_case()));
  }
}

}  // namespace cairn::rpc
