// Checks of numbers and byte strings that came over a socket. Each names the field, what it is and
// what it must be, so that the sender can find the mistake. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/kv/v1/kv.pb.h"
#include "common/base/range.h"
#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::rpc {

namespace pb = ::cairn::kv::v1;

// All INVALID_ARGUMENT naming `field`.
using ::cairn::CheckBetween;
absl::Status CheckBytesMax(std::string_view field, const std::string& bytes,
                           std::int64_t bytes_max);
absl::Status CheckCountMax(std::string_view field, std::int64_t count, std::int64_t count_max);
absl::Status CheckLayer(std::int64_t layer);
absl::Status CheckHead(std::int64_t head);
// Ids count from 1.
absl::Status CheckId(std::string_view field, std::int64_t id);
// The bytes of `position_count` entries: a multiple of it, and none without positions.
absl::Status CheckEntryBytes(std::string_view field, std::int64_t bytes,
                             std::int64_t position_count);

absl::Status CheckNextIds(const google::protobuf::RepeatedField<std::int64_t>& ids);

absl::StatusOr<KvFormat> FormatFromProto(std::string_view field, std::int64_t number);
absl::StatusOr<Positions> PositionsFromProto(std::string_view field,
                                             const pb::Positions& positions);
void PositionsToProto(const Positions& positions, pb::Positions* out);

// Of a message that names a cluster of one layer.
template <typename Message>
absl::StatusOr<ClusterRef> ClusterFromProto(const Message& message) {
  CAIRN_RETURN_IF_ERROR(CheckHead(message.head()));
  CAIRN_RETURN_IF_ERROR(CheckId("cluster_id", message.cluster_id()));
  return ClusterRef{message.head(), ClusterId(message.cluster_id())};
}
template <typename Message>
void ClusterToProto(const ClusterRef& cluster, Message* out) {
  out->set_head(cluster.head);
  out->set_cluster_id(cluster.cluster_id.value());
}

// Converts each element of a repeated field; an error names the element, as "clusters[3]".
template <typename Messages, typename Values, typename Convert>
absl::Status ConvertAll(std::string_view field, Messages& from, Values* to, Convert convert) {
  to->reserve(static_cast<std::size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) {
    auto value = convert(from[i]);
    if (!value.ok()) return Annotate(value.status(), fmt::format("{}[{}]", field, i));
    to->push_back(*std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace cairn::rpc
