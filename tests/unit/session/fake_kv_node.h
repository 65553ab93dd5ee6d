// FakeKvNode keeps sessions in memory and is strict: it refuses what the protocol forbids
// (positions out of order, a checkpoint that does not hold every position exactly once, entries
// brought twice or never). It can cut replies into spans at random, lose the connection at a chosen
// call, and tamper with replies.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compute-node/kv_client/kv_client.h"

namespace cairn::compute {

struct FakeKvState {
  using Entries = std::map<std::int64_t, std::string>;  // by position
  std::int64_t token_count = 0;
  std::map<std::pair<std::int32_t, ClusterRef>, Entries> clusters;  // by (layer, cluster)
  std::int64_t segment_start = 0;
  // Carried once in the open segment: (layer, head).
  std::map<std::pair<std::int32_t, std::int32_t>, Entries> records;
  // What the last checkpoint carried, in whichever segment.
  std::map<std::pair<std::int32_t, std::int32_t>, Entries> carried_entries;
  std::map<std::pair<std::int32_t, std::int32_t>, Positions> carried;
  std::map<std::pair<std::int32_t, std::int32_t>, Positions> staged;  // for the next checkpoint
  PutPolicyState policy;
  PutPolicyState staged_policy;
  std::string random_state;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> next_cluster_ids;
};

struct FakeKvRecord {
  CreateSession created;
  bool attached = false;
  FakeKvState committed;
};

class FakeKvNode : public KvNode {
 public:
  explicit FakeKvNode(std::uint64_t seed) : random(seed) {}

  absl::StatusOr<SessionRef> Create(const CreateSession& request) override;
  absl::StatusOr<std::unique_ptr<KvSession>> Open(const SessionRef& session) override;
  absl::Status Delete(const SessionRef& session) override;
  absl::StatusOr<SessionInfo> Get(const SessionRef& session, ListDetail detail) override;
  absl::StatusOr<std::vector<SessionInfo>> List(ListDetail detail) override;
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) override;
  absl::Status Supersede(const Supersession& request) override;
  absl::StatusOr<KvStats> Stats() override { return KvStats{}; }
  std::int64_t part_bytes_max() const override { return part_bytes; }

  // Settings; change them between calls.
  std::int64_t part_bytes = 65536;
  bool cut_spans = true;
  std::function<void(const Fetch&, FetchReply&)> tamper;
  int fetches_to_stall = 0;  // so many are never answered
  // Set: ends of checkpoints are not told, and this is called when one is waited for.
  std::function<void()> stall_checkpoints;
  // The connection is lost at this many calls of a session from now; 0: never. Then again every
  // `loss_interval` calls (0: once).
  std::int64_t calls_until_loss = 0;
  std::int64_t loss_interval = 0;
  std::vector<std::int64_t>
      further_losses;  // before loss_interval counts: calls to each, last first
  // The next checkpoint is committed, but the connection is lost before its answer.
  bool lose_checkpoint_answer = false;
  bool opened_by_another = false;  // Reattach fails
  bool refuse_deletions = false;

  // What happened.
  std::int64_t call_count = 0;
  std::int64_t loss_count = 0;
  std::int64_t fetched_bytes = 0;
  std::int64_t append_bytes_max = 0;  // the largest message
  std::int64_t checkpoint_count = 0;
  std::int64_t policy_read_count = 0;

  // Whether it is the one that has the number.
  absl::Status Find(const SessionRef& session) const;

  std::map<std::int64_t, FakeKvRecord> sessions;
  std::mt19937_64 random;
};

}  // namespace cairn::compute
