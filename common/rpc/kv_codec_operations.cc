#include <utility>

#include "common/rpc/kv_codec.h"

namespace cairn::rpc {
namespace {

using RequestCase = pb::ChannelRequest::OperationCase;

absl::StatusOr<ClusterEntries> EntriesFromProto(pb::ClusterEntries& cluster) {
  ClusterEntries out;
  CAIRN_ASSIGN_OR_RETURN(out.cluster, ClusterFromProto(cluster));
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", cluster.positions()));
  if (out.positions.empty()) return InvalidArgument("positions is empty");
  CAIRN_RETURN_IF_ERROR(
      CheckEntryBytes("entries", std::ssize(cluster.entries()), out.positions.count()));
  out.entries = std::move(*cluster.mutable_entries());
  return out;
}

absl::StatusOr<ChildCluster> ChildFromProto(const pb::ChildCluster& child) {
  ChildCluster out;
  CAIRN_RETURN_IF_ERROR(CheckId("cluster_id", child.cluster_id()));
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", child.positions()));
  if (out.positions.empty()) return InvalidArgument("positions is empty");
  out.cluster_id = ClusterId(child.cluster_id());
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::Append* append) {
  Append out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(append->layer()));
  out.layer = append->layer();
  CAIRN_RETURN_IF_ERROR(
      ConvertAll("clusters", *append->mutable_clusters(), &out.clusters, EntriesFromProto));
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::Replace* replace) {
  Replace out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(replace->layer()));
  CAIRN_RETURN_IF_ERROR(CheckHead(replace->head()));
  out.layer = replace->layer();
  out.head = replace->head();
  for (const std::int64_t id : replace->parent_ids()) {
    CAIRN_RETURN_IF_ERROR(CheckId("parent_ids", id));
    out.parent_ids.emplace_back(id);
  }
  CAIRN_RETURN_IF_ERROR(ConvertAll("children", replace->children(), &out.children, ChildFromProto));
  CAIRN_ASSIGN_OR_RETURN(out.brought_positions,
                         PositionsFromProto("brought_positions", replace->brought_positions()));
  CAIRN_RETURN_IF_ERROR(CheckEntryBytes("brought_entries", std::ssize(replace->brought_entries()),
                                        out.brought_positions.count()));
  CAIRN_ASSIGN_OR_RETURN(out.evicted_positions,
                         PositionsFromProto("evicted_positions", replace->evicted_positions()));
  out.brought_entries = std::move(*replace->mutable_brought_entries());
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(const pb::Evict& evict) {
  Evict out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(evict.layer()));
  CAIRN_RETURN_IF_ERROR(CheckHead(evict.head()));
  out.layer = evict.layer();
  out.head = evict.head();
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", evict.positions()));
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::PutIndexRows* put) {
  PutIndexRows out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(put->layer()));
  out.layer = put->layer();
  CAIRN_RETURN_IF_ERROR(ConvertAll("rows", *put->mutable_rows(), &out.rows, RowFromProto));
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::PutPolicyState* put) {
  CAIRN_RETURN_IF_ERROR(CheckBetween("version", put->version(), 0, INT32_MAX));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("state", put->state(), kPolicyStateBytesMax));
  return PutPolicyState{put->version(), std::move(*put->mutable_state())};
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::StageCarried* stage) {
  StageCarried out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(stage->layer()));
  out.layer = stage->layer();
  CAIRN_RETURN_IF_ERROR(ConvertAll("carried", *stage->mutable_carried(), &out.carried,
                                   [](pb::CarriedEntries& carried) {
                                     return CarriedFromProto(carried, CarriedUse::kOperation);
                                   }));
  return out;
}

absl::StatusOr<ChangingOperation> ChangeFromProto(pb::Checkpoint* checkpoint) {
  Checkpoint out;
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("token_count", checkpoint->token_count(), 0, kPositionMax + 1));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("token_ids_start", checkpoint->token_ids_start(), 0, checkpoint->token_count()));
  const std::int64_t id_count = checkpoint->token_count() - checkpoint->token_ids_start();
  if (checkpoint->token_ids_size() != id_count) {
    return InvalidArgument("token_ids has {} elements: token_count - token_ids_start is {}",
                           checkpoint->token_ids_size(), id_count);
  }
  CAIRN_RETURN_IF_ERROR(
      CheckBytesMax("random_state", checkpoint->random_state(), kRandomStateBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckNextIds(checkpoint->next_cluster_ids()));
  out.token_count = checkpoint->token_count();
  out.seal = checkpoint->seal();
  out.token_ids.assign(checkpoint->token_ids().begin(), checkpoint->token_ids().end());
  out.token_ids_start = checkpoint->token_ids_start();
  out.random_state = std::move(*checkpoint->mutable_random_state());
  out.next_cluster_ids.assign(checkpoint->next_cluster_ids().begin(),
                              checkpoint->next_cluster_ids().end());
  return out;
}

absl::StatusOr<ReadOperation> FetchFromProto(const pb::Fetch& fetch) {
  Fetch out;
  CAIRN_RETURN_IF_ERROR(CheckLayer(fetch.layer()));
  CAIRN_RETURN_IF_ERROR(CheckCountMax("clusters", fetch.clusters_size(), kFetchClusterCountMax));
  out.layer = fetch.layer();
  CAIRN_RETURN_IF_ERROR(
      ConvertAll("clusters", fetch.clusters(), &out.clusters, ClusterFromProto<pb::ClusterRef>));
  out.with_positions = fetch.with_positions();
  return out;
}

absl::StatusOr<ReadOperation> TokensFromProto(const pb::GetTokens& get) {
  CAIRN_RETURN_IF_ERROR(CheckBetween("first", get.first(), 0, kPositionMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("count", get.count(), 0, kGetTokensCountMax));
  return GetTokens{get.first(), get.count()};
}

// For the reads whose only field is a layer.
template <typename Value, typename Message>
absl::StatusOr<ReadOperation> LayerFromProto(const Message& message) {
  CAIRN_RETURN_IF_ERROR(CheckLayer(message.layer()));
  return Value{message.layer()};
}

absl::StatusOr<ReadOperation> FetchIndexFromProto(const pb::FetchIndex& fetch) {
  CAIRN_RETURN_IF_ERROR(CheckLayer(fetch.layer()));
  return FetchIndex{.layer = fetch.layer(), .only_visible = fetch.only_visible()};
}

struct OperationToProto {
  pb::ChannelRequest* request;

  void operator()(Append append) const {
    pb::Append* out = request->mutable_append();
    out->set_layer(append.layer);
    for (ClusterEntries& cluster : append.clusters) {
      pb::ClusterEntries* entries = out->add_clusters();
      ClusterToProto(cluster.cluster, entries);
      PositionsToProto(cluster.positions, entries->mutable_positions());
      entries->set_entries(std::move(cluster.entries));
    }
  }
  void operator()(Replace replace) const {
    pb::Replace* out = request->mutable_replace();
    out->set_layer(replace.layer);
    out->set_head(replace.head);
    for (const ClusterId id : replace.parent_ids) out->add_parent_ids(id.value());
    for (const ChildCluster& child : replace.children) {
      pb::ChildCluster* message = out->add_children();
      message->set_cluster_id(child.cluster_id.value());
      PositionsToProto(child.positions, message->mutable_positions());
    }
    PositionsToProto(replace.brought_positions, out->mutable_brought_positions());
    out->set_brought_entries(std::move(replace.brought_entries));
    PositionsToProto(replace.evicted_positions, out->mutable_evicted_positions());
  }
  void operator()(const Evict& evict) const {
    pb::Evict* out = request->mutable_evict();
    out->set_layer(evict.layer);
    out->set_head(evict.head);
    PositionsToProto(evict.positions, out->mutable_positions());
  }
  void operator()(PutIndexRows put) const {
    pb::PutIndexRows* out = request->mutable_put_index_rows();
    out->set_layer(put.layer);
    for (IndexRow& row : put.rows) ToProto(std::move(row), out->add_rows());
  }
  void operator()(PutPolicyState put) const {
    pb::PutPolicyState* out = request->mutable_put_policy_state();
    out->set_version(put.version);
    out->set_state(std::move(put.state));
  }
  void operator()(StageCarried stage) const {
    pb::StageCarried* out = request->mutable_stage_carried();
    out->set_layer(stage.layer);
    for (CarriedEntries& carried : stage.carried) ToProto(std::move(carried), out->add_carried());
  }
  void operator()(Checkpoint checkpoint) const {
    pb::Checkpoint* out = request->mutable_checkpoint();
    out->set_token_count(checkpoint.token_count);
    out->set_seal(checkpoint.seal);
    out->mutable_token_ids()->Add(checkpoint.token_ids.begin(), checkpoint.token_ids.end());
    out->set_token_ids_start(checkpoint.token_ids_start);
    out->set_random_state(std::move(checkpoint.random_state));
    out->mutable_next_cluster_ids()->Add(checkpoint.next_cluster_ids.begin(),
                                         checkpoint.next_cluster_ids.end());
  }
  void operator()(const Fetch& fetch) const {
    pb::Fetch* out = request->mutable_fetch();
    out->set_layer(fetch.layer);
    out->set_with_positions(fetch.with_positions);
    for (const ClusterRef& cluster : fetch.clusters) ClusterToProto(cluster, out->add_clusters());
  }
  void operator()(const FetchIndex& fetch) const {
    request->mutable_fetch_index()->set_layer(fetch.layer);
    request->mutable_fetch_index()->set_only_visible(fetch.only_visible);
  }
  void operator()(const GetIndex& get) const { request->mutable_get_index()->set_layer(get.layer); }
  void operator()(const GetCarried& get) const {
    request->mutable_get_carried()->set_layer(get.layer);
  }
  void operator()(const GetTokens& get) const {
    request->mutable_get_tokens()->set_first(get.first);
    request->mutable_get_tokens()->set_count(get.count);
  }
  void operator()(const GetPolicyState&) const { request->mutable_get_policy_state(); }
  void operator()(const GetClusters& get) const {
    request->mutable_get_clusters()->set_layer(get.layer);
  }
};

}  // namespace

OperationKind KindOf(const pb::ChannelRequest& request) {
  switch (request.operation_case()) {
    case RequestCase::kHello:
      return OperationKind::kHello;
    case RequestCase::kAppend:
    case RequestCase::kReplace:
    case RequestCase::kEvict:
    case RequestCase::kPutIndexRows:
    case RequestCase::kPutPolicyState:
    case RequestCase::kStageCarried:
    case RequestCase::kCheckpoint:
      return OperationKind::kChanging;
    case RequestCase::kFetch:
    case RequestCase::kFetchIndex:
    case RequestCase::kGetIndex:
    case RequestCase::kGetCarried:
    case RequestCase::kGetTokens:
    case RequestCase::kGetPolicyState:
    case RequestCase::kGetClusters:
      return OperationKind::kRead;
    case RequestCase::kRelease:
      return OperationKind::kRelease;
    case RequestCase::OPERATION_NOT_SET:
      break;
  }
  return OperationKind::kNone;
}

void SetOperation(ChangingOperation operation, pb::ChannelRequest* request) {
  std::visit([request](auto& alternative) { OperationToProto{request}(std::move(alternative)); },
             operation);
}

void SetOperation(const ReadOperation& operation, pb::ChannelRequest* request) {
  std::visit(OperationToProto{request}, operation);
}

absl::StatusOr<ChangingOperation> TakeChangingOperation(pb::ChannelRequest* request) {
  switch (request->operation_case()) {
    case RequestCase::kAppend:
      return ChangeFromProto(request->mutable_append());
    case RequestCase::kReplace:
      return ChangeFromProto(request->mutable_replace());
    case RequestCase::kEvict:
      return ChangeFromProto(request->evict());
    case RequestCase::kPutIndexRows:
      return ChangeFromProto(request->mutable_put_index_rows());
    case RequestCase::kPutPolicyState:
      return ChangeFromProto(request->mutable_put_policy_state());
    case RequestCase::kStageCarried:
      return ChangeFromProto(request->mutable_stage_carried());
    case RequestCase::kCheckpoint:
      return ChangeFromProto(request->mutable_checkpoint());
    default:
      return Internal("operation {} is not a changing one",
                      static_cast<int>(request->operation_case()));
  }
}

absl::StatusOr<ReadOperation> ReadOperationFromProto(const pb::ChannelRequest& request) {
  switch (request.operation_case()) {
    case RequestCase::kFetch:
      return FetchFromProto(request.fetch());
    case RequestCase::kFetchIndex:
      return FetchIndexFromProto(request.fetch_index());
    case RequestCase::kGetIndex:
      return LayerFromProto<GetIndex>(request.get_index());
    case RequestCase::kGetCarried:
      return LayerFromProto<GetCarried>(request.get_carried());
    case RequestCase::kGetTokens:
      return TokensFromProto(request.get_tokens());
    case RequestCase::kGetPolicyState:
      return GetPolicyState{};
    case RequestCase::kGetClusters:
      return LayerFromProto<GetClusters>(request.get_clusters());
    default:
      return Internal("operation {} is not a read", static_cast<int>(request.operation_case()));
  }
}

void ToProto(IndexRow row, pb::IndexRow* out) {
  ClusterToProto(row.cluster, out);
  out->set_row(std::move(row.row));
  out->set_stale(row.stale);
  out->set_entry_count(row.entry_count);
}

absl::StatusOr<IndexRow> RowFromProto(pb::IndexRow& row) {
  IndexRow out;
  CAIRN_ASSIGN_OR_RETURN(out.cluster, ClusterFromProto(row));
  CAIRN_RETURN_IF_ERROR(CheckBytesMax("row", row.row(), kIndexRowBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("entry_count", row.entry_count(), 0, kPositionMax + 1));
  out.row = std::move(*row.mutable_row());
  out.stale = row.stale();
  out.entry_count = row.entry_count();
  return out;
}

void ToProto(CarriedEntries carried, pb::CarriedEntries* out) {
  out->set_head(carried.head);
  out->set_buffer_cluster_id(carried.buffer_cluster_id.value());
  PositionsToProto(carried.positions, out->mutable_positions());
  PositionsToProto(carried.brought_positions, out->mutable_brought_positions());
  out->set_entries(std::move(carried.entries));
}

absl::StatusOr<CarriedEntries> CarriedFromProto(pb::CarriedEntries& carried, CarriedUse use) {
  CarriedEntries out;
  CAIRN_RETURN_IF_ERROR(CheckHead(carried.head()));
  const ClusterId buffer(carried.buffer_cluster_id());
  if (buffer != kWindowBuffer) {
    CAIRN_RETURN_IF_ERROR(CheckId("buffer_cluster_id (-1: the window)", buffer.value()));
  }
  CAIRN_ASSIGN_OR_RETURN(out.positions, PositionsFromProto("positions", carried.positions()));
  CAIRN_ASSIGN_OR_RETURN(out.brought_positions,
                         PositionsFromProto("brought_positions", carried.brought_positions()));
  const Positions& with_bytes =
      use == CarriedUse::kOperation ? out.brought_positions : out.positions;
  CAIRN_RETURN_IF_ERROR(
      CheckEntryBytes("entries", std::ssize(carried.entries()), with_bytes.count()));
  out.head = carried.head();
  out.buffer_cluster_id = buffer;
  out.entries = std::move(*carried.mutable_entries());
  return out;
}

}  // namespace cairn::rpc
