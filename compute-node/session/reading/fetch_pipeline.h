// FetchPipeline brings the clusters of one forward pass from the KV node, layer after layer, slice
// after slice, a few slices ahead of the attention that uses them: while a slice is attended the
// next is on its way, and after the last slice of a layer the first ones of the next layer are, so
// that they arrive during the feed-forward part. What arrives is compared with what was planned: a
// wrong shape or a lost part is an error, never a wrong answer.
//
// Memory:     at most kSlicesInFlightMax slices, counted in a KvMemory from request to release.
// Threading:  one thread.
// Blocking:   Next waits for the KV node, watching the stop signal.
// Errors:     DATA_LOSS names layer, head and cluster; CANCELLED, DEADLINE_EXCEEDED; what the
//             session answers. After an error call Reset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr int kSlicesInFlightMax = 3;

// Clusters in the planned order.
struct ArrivedSlice {
  std::vector<PlannedCluster> planned;
  std::vector<std::vector<const std::byte*>> entries;  // of each cluster
  // Keep what the pointers name.
  FetchReply reply;
  KvMemoryCharge charge;
};

class FetchPipeline {
 public:
  // What to fetch for a layer; called once for each layer of a pass.
  using Plan = std::function<std::vector<FetchSlice>(std::int32_t layer)>;

  // Borrows `memory`, which outlives it.
  FetchPipeline(const EntryLayout& layout, KvMemory& memory) : layout_(layout), memory_(memory) {}

  // Starts a pass: requests the first slices of layer 0 if `ahead`. `session` and `plan` live until
  // the pass ends. With `ahead` a layer may be planned while the layer before is attended; without
  // it only by StartLayer.
  void StartPass(KvSession& session, Plan plan, bool ahead);

  // Begins to take the slices of `layer`. REQUIRES: layers in order, each one's slices all taken.
  void StartLayer(std::int32_t layer);
  // Whether the layer has slices that were not taken.
  bool HasNext() const;
  absl::StatusOr<ArrivedSlice> Next(const StopSignal& stop);

  // Forgets what is planned and in flight.
  void Reset();

 private:
  struct Request {
    std::int32_t layer = 0;
    FetchSlice slice;
    // Once it is in flight.
    std::future<absl::StatusOr<ReadReply>> answer{};
    KvMemoryCharge charge{};
  };

  void PlanLayer(std::int32_t layer);
  void RequestMore();
  absl::StatusOr<ArrivedSlice> Check(Request request, FetchReply reply) const;

  const EntryLayout layout_;
  KvMemory& memory_;
  KvSession* session_ = nullptr;
  Plan plan_;
  bool ahead_ = false;
  std::int32_t layer_ = -1;       // being attended
  std::int32_t planned_to_ = -1;  // the last layer that was planned
  std::deque<Request> planned_;
  std::deque<Request> in_flight_;
};

}  // namespace cairn::compute
