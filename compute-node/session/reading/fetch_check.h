// What every answer to a fetch is held against before its bytes are used.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// Of reads whose answers lay in memory that was lost with the connection, where no step repeats
// them.
inline constexpr int kTornRetriesMax = 2;

// Whether positions were asked for: without them only the number of entries is compared.
enum class WithPositions : bool { kNo, kYes };

// Adds the cluster's entries in position order. DATA_LOSS, naming layer, head and cluster, if they
// are not what was planned. REQUIRES: kYes for a cluster whose positions were planned.
absl::Status CheckFetched(std::int32_t layer, const PlannedCluster& planned,
                          const FetchedCluster& fetched, const EntryLayout& layout,
                          WithPositions with_positions, std::vector<const std::byte*>& arrived);

// Behind the attention over it: ABORTED unless the reply's bytes were there all the time.
absl::Status CheckIntact(const FetchReply& reply);

// Waits for the answer to a fetch of the session, watching the stop signal; its clock counts the
// wait. DATA_LOSS if the answer has not `cluster_count` clusters.
absl::StatusOr<FetchReply> WaitForFetch(KvSession& session, std::int32_t layer,
                                        std::future<absl::StatusOr<ReadReply>>& answer,
                                        std::size_t cluster_count, const StopSignal& stop);

}  // namespace cairn::compute
