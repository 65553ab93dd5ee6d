// What a session shows on a disk that fails, compared with what it must show.
#include <algorithm>

#include "tests/unit/engine/fault_world.h"

namespace cairn::kv {

absl::Status FaultWorld::ReadCarried(Chat& chat) {
  chat.recorded.clear();
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    absl::StatusOr<ReadReply> reply;
    FaultyDiskHits before;
    // What comes wrong twice may come right the next time.
    for (int tries = 0; tries < 2; ++tries) {
      if (tries > 0) disk_.ForgetFaults();
      before = disk_.hits();
      reply = Read(chat, GetCarried{layer});
      if (reply.ok()) break;
    }
    if (Tells(reply.status(), kCarriedLost) && !MayBeLost(before)) {
      return Wrong("without a reason: {}", reply.status().ToString());
    }
    CAIRN_RETURN_IF_ERROR(reply.status());
    const std::vector<CarriedEntries>& all = std::get<CarriedReply>(*reply).carried;
    if (!operations_.AreCarriedOf(chat.now, layer, all)) {
      return Wrong("session {} carries other entries in layer {}", chat.id, layer);
    }
    for (const CarriedEntries& carried : all) {
      carried.brought_positions.ForEach([&](std::int64_t p) { chat.recorded.insert(p); });
    }
  }
  return absl::OkStatus();
}

// Which positions there are is known whatever the disk does.
absl::Status FaultWorld::CheckClusterList(Chat& chat) {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_ASSIGN_OR_RETURN(const ReadReply reply, chat.session->Read(GetClusters{layer}));
    std::size_t count = 0;
    for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
      count += chat.now.clusters[{layer, head}].size();
    }
    const std::vector<ClusterInfo>& shown = std::get<ClustersReply>(reply).clusters;
    if (shown.size() != count) {
      return Wrong("session {} layer {} shows {} clusters of {}", chat.id, layer, shown.size(),
                   count);
    }
    for (const ClusterInfo& info : shown) {
      const auto& clusters = chat.now.clusters[{layer, info.cluster.head}];
      const auto found = clusters.find(info.cluster.cluster_id.value());
      if (found != clusters.end() && Positions::FromUnsorted(found->second) == info.positions) {
        continue;
      }
      return Wrong("session {} layer {} head {} cluster {} shows other positions", chat.id, layer,
                   info.cluster.head, info.cluster.cluster_id);
    }
  }
  return absl::OkStatus();
}

absl::Status FaultWorld::CheckCluster(Chat& chat, const Oracle::LayerHead& layer_head,
                                      std::int64_t cluster, std::set<std::int64_t>& lost) {
  const auto [layer, head] = layer_head;
  const FaultyDiskHits before = disk_.hits();
  CAIRN_ASSIGN_OR_RETURN(const ReadReply reply,
                         chat.session->Read(cairn::Fetch{
                             layer, {{head, ClusterId(cluster)}}, /*with_positions=*/true}));
  const FetchedCluster& fetched = std::get<FetchReply>(reply).clusters.at(0);
  const auto& clusters = chat.now.clusters[layer_head];
  const auto expected = clusters.find(cluster);
  const auto wrong = [&, layer = layer, head = head](std::string_view what) {
    return Wrong("session {} layer {} head {} cluster {}: {}", chat.id, layer, head, cluster, what);
  };
  if (expected == clusters.end()) {
    return fetched.outcome == FetchOutcome::kUnknown ? absl::OkStatus() : wrong("is there");
  }
  if (fetched.outcome == FetchOutcome::kUnknown) return wrong("is unknown");
  if (fetched.outcome == FetchOutcome::kLost) {
    if (!fetched.spans.empty()) return wrong("is lost, and has spans");
    if (!MayBeLost(before)) return wrong("is lost without a reason");
    ++counts_["cluster reported lost"];
    lost.insert(cluster);
    return absl::OkStatus();
  }
  if (fetched.outcome == FetchOutcome::kUnreadable) {
    if (!fetched.spans.empty()) return wrong("is unreadable, and has spans");
    if (!MayBeUnreadable(before)) return wrong("is unreadable without a reason");
    ++counts_["cluster reported unreadable"];
    return absl::OkStatus();
  }
  const JoinedCluster joined = Join(layout_, fetched);
  const Positions positions = Positions::FromUnsorted(expected->second);
  if (joined.positions != positions) return wrong("has other positions");
  if (joined.entries != operations_.Entries(chat.now, layer, head, positions)) {
    return wrong("has other bytes");
  }
  ++counts_["cluster compared"];
  return absl::OkStatus();
}

// Rows may be lost, and none may be of another time; only where one is lost an older record shows.
absl::Status FaultWorld::CheckIndex(Chat& chat, std::int32_t layer) {
  const FaultyDiskHits before = disk_.hits();
  CAIRN_ASSIGN_OR_RETURN(const ReadReply records, Read(chat, FetchIndex{layer}));
  if (!RandomOperations::HasRecordsOf(chat.now, layer, std::get<FetchReply>(records))) {
    if (!MayLackRows(before)) {
      return Wrong("session {} layer {} has other index records", chat.id, layer);
    }
    ++counts_["index records lost"];
  }
  CAIRN_ASSIGN_OR_RETURN(const ReadReply visible, Read(chat, FetchIndex{layer, true}));
  const auto& fetched = std::get<FetchReply>(visible);
  if (fetched.clusters.at(0).outcome == FetchOutcome::kFound) {
    CAIRN_RETURN_IF_ERROR(CheckRows(chat, layer, RandomOperations::VisibleRowsOf(fetched), before));
  } else {
    if (!MayLackRows(before)) return Wrong("session {} layer {} lost its index", chat.id, layer);
    ++counts_["visible index lost"];
  }
  CAIRN_ASSIGN_OR_RETURN(const ReadReply reply, Read(chat, GetIndex{layer}));
  return CheckRows(chat, layer, std::get<IndexReply>(reply).rows, before);
}

absl::Status FaultWorld::CheckRows(Chat& chat, std::int32_t layer,
                                   const std::vector<IndexRow>& rows,
                                   const FaultyDiskHits& before) {
  if (RandomOperations::AreRowsOf(chat.now, layer, rows)) return absl::OkStatus();
  if (!MayLackRows(before) || !RandomOperations::AreSomeRowsOf(chat.now, layer, rows)) {
    return Wrong("session {} layer {} has other index rows", chat.id, layer);
  }
  ++counts_["index rows lost"];
  return absl::OkStatus();
}

absl::Status FaultWorld::CheckSome(Chat& chat) {
  const auto layer = static_cast<std::int32_t>(Random(layout_.layer_count));
  std::set<std::int64_t> lost;
  CAIRN_RETURN_IF_ERROR(CheckIndex(chat, layer));
  for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
    const std::int64_t id_max = chat.now.next_id[{layer, head}] + 1;
    for (int i = 0; i < 3; ++i) {
      CAIRN_RETURN_IF_ERROR(CheckCluster(chat, {layer, head}, 1 + Random(id_max), lost));
    }
  }
  return absl::OkStatus();
}

absl::Status FaultWorld::CheckAll(Chat& chat) {
  CAIRN_RETURN_IF_ERROR(CheckClusterList(chat));
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_RETURN_IF_ERROR(CheckIndex(chat, layer));
    for (const std::int32_t head : RandomOperations::HeadsOf(layer)) {
      std::set<std::int64_t> lost;
      for (std::int64_t id = 1; id <= chat.now.next_id[{layer, head}]; ++id) {
        CAIRN_RETURN_IF_ERROR(CheckCluster(chat, {layer, head}, id, lost));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::kv
