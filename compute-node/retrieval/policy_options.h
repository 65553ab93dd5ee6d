// PolicyOptions: what a policy is made from, equal for all of them. Values.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/retrieval/clustering/query_metric.h"
#include "compute-node/retrieval/selection_options.h"

namespace cairn::compute {

struct PolicyOptions {
  EntryLayout layout;
  // Query heads that share a KV head.
  std::int64_t group_size = 1;
  RotaryPairs rotary_pairs = RotaryPairs::kAdjacent;
  // Of the KV node: a cluster that is to be one read must fit into it.
  std::int64_t part_bytes_max = 0;
  // The most that one slice asks for, at least one cluster.
  std::int64_t fetch_slice_bytes = std::int64_t{2} << 20;
  SelectionOptions selection;

  absl::Status Validate() const;
};

}  // namespace cairn::compute
