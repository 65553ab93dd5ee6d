// Values that tests of the clients send.
#pragma once

#include <string>
#include <utility>

#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"

namespace cairn::compute::values {

inline CreateSession ValidCreateSession() {
  CreateSession create;
  create.key.model_digest = std::string(32, 'm');
  create.key.rope_parameters = "base=10000";
  create.layout = {2, 1, 2, KvFormat::kF16};
  create.label = "test";
  return create;
}

inline std::string EntryOf(std::int64_t position) { return fmt::format("{:08}", position); }

// One entry of 8 bytes to cluster 1 of layer 0.
inline Append AppendAt(std::int64_t position) {
  ClusterEntries cluster;
  cluster.cluster = {0, ClusterId(1)};
  cluster.positions = Positions::Range(position, 1);
  cluster.entries = EntryOf(position);
  Append append;
  append.clusters.push_back(std::move(cluster));
  return append;
}

inline Checkpoint CheckpointAt(std::int64_t token_count, std::int64_t token_ids_start) {
  Checkpoint checkpoint;
  checkpoint.token_count = token_count;
  checkpoint.token_ids_start = token_ids_start;
  for (std::int64_t i = token_ids_start; i < token_count; ++i) {
    checkpoint.token_ids.push_back(static_cast<std::int32_t>(i));
  }
  return checkpoint;
}

inline Fetch FetchAll() { return {0, {{0, ClusterId(1)}}, true}; }

// All entries of the only cluster, or what went wrong.
inline std::string EntriesOf(std::future<absl::StatusOr<ReadReply>> answer) {
  absl::StatusOr<FetchReply> reply = Wait<FetchReply>(std::move(answer));
  if (!reply.ok()) return reply.status().ToString();
  std::string out;
  for (const Span& span : reply->clusters.at(0).spans) {
    for (std::int64_t i = 0; i < span.entry_count; ++i) {
      out.append(reinterpret_cast<const char*>(span.Entry(i, 8)), 8);
    }
  }
  return out;
}

inline std::string EntriesUpTo(std::int64_t count) {
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) out += EntryOf(i);
  return out;
}

}  // namespace cairn::compute::values
