// What a checkpoint or a spill writes to the log: entries without a record, and, where the runs of
// a segment would become too many, records that are still named (rule 19).
//
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {

// Log runs of one size class that a segment may have, beside those that are full of clusters which
// lie nowhere else (rule 19).
inline constexpr int kLogRunsMax = 8;

// Bytes of runs whose records are written again in one, because those are read into memory for it;
// a single run may be longer. Classes of longer runs have more than kLogRunsMax, and each of those
// is written again once half of it is free.
inline constexpr std::int64_t kRelogReadBytesMax = std::int64_t{4} << 20;

// Entries of one row that get a record in a new run, or keep the one that they have.
struct LogItem {
  static LogItem Existing(Part part) { return {std::move(part), false, false, {}, {}}; }
  static LogItem New(Positions positions, std::string_view entries) {
    return {std::nullopt, false, false, std::move(positions), entries};
  }

  bool needs_record() const { return again || !existing.has_value(); }

  std::optional<Part> existing;  // keeps its record, or is written again when `again` is set
  bool again = false;
  bool rest_of_again = false;  // was cut from one that is written again
  Positions positions;         // of new records
  std::string_view entries;    // of new records
};

struct LogPlan {
  // Rows of the open segment as they will be; a row that is not here stays.
  std::map<ClusterKey, std::vector<LogItem>> parts;
  std::vector<ClusterKey> order;  // of `parts`: what is fetched together is next to each other
  std::map<ClusterKey, std::vector<LogItem>> carried;
  std::map<ClusterKey, std::vector<PendingChunk>> pending;  // keeps `entries` of parts alive
  std::vector<PageIndex> pages_to_read;                     // of records that are written again
  std::int64_t new_bytes = 0;
  std::int64_t again_bytes = 0;
  bool is_spill = false;  // else a checkpoint's
  // What is carried goes to runs of its own. In a segment that is sealed no cluster will name these
  // records, and while they lie elsewhere the clusters' runs can go when those are packed.
  bool carried_apart = false;

  // Calls `fn` with the key and the items of every row, always in the same order. REQUIRES: `order`
  // has been set.
  void ForEachRow(const std::function<void(const ClusterKey&, std::vector<LogItem>&)>& fn) {
    for (const ClusterKey& key : order) fn(key, parts.at(key));
    for (auto& [key, items] : carried) fn(key, items);
  }
};

class LogPlanner {
 public:
  // `state` outlives it.
  explicit LogPlanner(const SessionState& state) : state_(state) {}

  // For a checkpoint: what is pending, and what is staged to be carried. INVALID_ARGUMENT for an
  // entry that is carried without its bytes and without a record.
  absl::Status PlanCheckpoint(const std::map<ClusterKey, CarriedEntries>& staged,
                              LogPlan& plan) const;
  // For a spill: what is pending; carried rows stay.
  void PlanSpill(LogPlan& plan) const;

 private:
  // The record of a carried entry of the open segment, found by its layer, head and position; null:
  // it has none.
  using RecordOf = std::function<const Part*(const ClusterKey& key, std::int64_t position)>;
  RecordOf CarriedRecords() const;
  void PlanPending(const RecordOf& record_of, LogPlan& plan) const;
  absl::Status PlanCarried(const ClusterKey& key, const CarriedEntries& entries,
                           const RecordOf& record_of, LogPlan& plan) const;
  void PlanChunk(const ClusterKey& key, const PendingChunk& chunk, const RecordOf& record_of,
                 std::vector<LogItem>& items, std::int64_t& new_bytes) const;
  // Records that carried entries have already are written to the new run too.
  void PlanCarriedAgain(LogPlan& plan) const;
  void WriteAgain(const ClusterKey& key, LogItem& item, LogPlan& plan) const;
  void PlanStragglers(LogPlan& plan) const;
  ExtentBytes NamedLogBytes(const LogPlan& plan) const;
  ExtentSet RunsToWriteAgain(LogPlan& plan) const;
  void AddSparseRuns(const ExtentBytes& named_bytes, std::int64_t read_bytes, LogPlan& plan,
                     ExtentSet& again) const;
  ExtentSet SettledRuns(const LogPlan& plan, const ExtentBytes& named_bytes) const;

  const SessionState& state_;
};

}  // namespace cairn::kv
