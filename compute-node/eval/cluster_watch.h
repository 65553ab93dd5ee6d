// ClusterWatch follows the clusters of one conversation: which entries they hold, when they change,
// and which of them the steps read.
//
// A step reads at its position; what changes behind it, before the next one, counts as of that
// step. The cluster of the sinks, which every step reads, is left out of all counts.
//
// Threading:  different layers may be told of at the same time; the rest one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "compute-node/model/config.h"
#include "compute-node/retrieval/cluster_keeper.h"
#include "compute-node/retrieval/selection_options.h"
#include "compute-node/session/attention/stored_attention.h"

namespace cairn::eval {

// Within so many steps a cluster is read again, or not.
inline constexpr std::array<std::int64_t, 5> kAgainSteps = {1, 2, 4, 8, 16};
// All clusters are looked at in one step of so many, to compare with those that changed.
inline constexpr std::int64_t kAllClustersEvery = 64;

struct ReadAgain {
  std::int64_t cluster_count = 0;
  std::array<std::int64_t, kAgainSteps.size()> within{};  // by kAgainSteps
};

// Of the clusters that a step read, at the steps that are measured: whether the one that was most
// often read together with it until then was read too.
struct ReadTogether {
  std::int64_t cluster_count = 0;  // that had such a one
  std::int64_t partner_count = 0;  // of these, with it read
  double by_chance = 0;  // what partner_count would be if clusters were read independently
};

// What delayed splits read, and what splits at once would.
struct DelayedSplits {
  std::int64_t flagged_count = 0;  // clusters that became due for a split
  std::int64_t unread_count = 0;   // of these, not read by the step before
  std::int64_t unread_entries = 0;
  std::int64_t split_count = 0;
  // Steps, by head, that had to read a cluster because as many entries as may be were held back;
  // some of them would have read it anyway. And the entries of it.
  std::int64_t forced_count = 0;
  std::int64_t forced_entries = 0;
};

struct ClusterCounts {
  std::int64_t appended_count = 0;  // clusters that got entries behind a step
  std::int64_t step_count = 0;      // by head
  std::int64_t read_entries = 0;    // of clusters, by the steps
  ReadAgain changed;                // clusters that got entries or are parts of a split
  ReadAgain all;
  ReadTogether together;
  DelayedSplits delay;
};

class ClusterWatch : public compute::AttentionObserver {
 public:
  struct Options {
    compute::SelectionOptions selection;
    std::int64_t first_position = 0;  // of the first step; what came before is the prompt
    std::int64_t together_every = 1;  // ReadTogether is measured at one step in so many
  };
  // Borrows `config`, which outlives it.
  ClusterWatch(const compute::ModelConfig& config, const Options& options);

  // What the policy did with leaving entries, and with clusters.
  void Stored(std::int32_t layer, const compute::StoreActions& actions);
  void Split(std::int32_t layer, std::span<const compute::ClusterSplit> splits);
  void LayerAttended(const compute::AttentionBatch& batch,
                     std::span<const compute::AttendedEntries> heads) override;

  // Of all heads together.
  ClusterCounts Counts() const;
  // Positions below it have left the window.
  std::int64_t stored_end(std::size_t row) const { return heads_[row].stored_end; }
  // The positions of each cluster of a (layer, KV head), by id, without sinks and what is held.
  std::vector<std::vector<std::int64_t>> Clusters(std::size_t row) const;

 private:
  struct Cluster {
    std::vector<std::int64_t> positions;
    // Steps behind which it changed, and at which all were looked at, since it was read last.
    std::vector<std::int64_t> changed_at;
    std::vector<std::int64_t> looked_at;
    std::int64_t held_count = 0;
    // Of the steps at which ReadTogether is measured: those since it was made, and with it read.
    std::int64_t first_measured = 0;
    std::int64_t read_count = 0;
    std::unordered_map<std::int64_t, std::int32_t> read_with;  // by id
    std::int64_t partner = 0;  // of these the most frequent; 0: none
  };
  struct Head {
    std::map<std::int64_t, Cluster> clusters;  // by id
    std::vector<std::int64_t> cluster_at;      // by position; 0: in none
    std::vector<std::int64_t> read;            // by the last step, ascending ids
    std::int64_t step = -1;                    // the last one's position
    std::int64_t held_total = 0;
    std::int64_t stored_end = 0;
    std::int64_t measured_count = 0;
    ClusterCounts counts;
  };

  Head& HeadAt(std::int32_t layer, std::int64_t head) {
    return heads_[static_cast<std::size_t>(layer * config_.kv_head_count + head)];
  }
  static void Put(Head& head, std::int64_t id, std::int64_t position);
  static void Changed(Head& head, Cluster& cluster);
  static void Hold(Head& head, std::int64_t id);
  static std::vector<std::int64_t> ReadClusters(const Head& head,
                                                std::span<const std::int64_t> positions);
  static void CountReads(Head& head);
  static void CountTogether(Head& head);
  static void FindPartner(Head& head, Cluster& cluster);
  void CountForced(Head& head) const;

  const compute::ModelConfig& config_;
  const Options options_;
  std::vector<Head> heads_;  // by (layer, KV head)
};

}  // namespace cairn::eval
