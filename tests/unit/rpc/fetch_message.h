// A FetchReply as protobuf writes it, for comparing it with what is framed by hand.
#pragma once

#include "common/rpc/kv_codec.h"

namespace cairn::rpc::test {

// Entries go inline, whatever memory they lie in.
inline void SetFetch(const FetchReply& reply, pb::ChannelReply* out) {
  pb::FetchReply* fetch = out->mutable_fetch();
  fetch->set_read_bytes(reply.read_bytes);
  for (const FetchedCluster& cluster : reply.clusters) {
    pb::FetchedCluster* message = fetch->add_clusters();
    ClusterToProto(cluster.cluster, message);
    message->set_outcome(static_cast<pb::FetchOutcome>(cluster.outcome));
    for (const Span& span : cluster.spans) {
      pb::Span* span_message = message->add_spans();
      span_message->set_part_id(span.part_id.value());
      span_message->set_first_entry(span.first_entry);
      span_message->set_entry_count(span.entry_count);
      span_message->set_direction(static_cast<pb::Direction>(span.direction));
      if (!span.positions.empty()) {
        PositionsToProto(span.positions, span_message->mutable_positions());
      }
      span_message->set_entries(span.bytes.data(), span.bytes.size());
    }
  }
}

}  // namespace cairn::rpc::test
