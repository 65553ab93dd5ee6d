// What a repair does to the rows of a store. The extent file's pages are never touched: a repair
// makes rows stop naming what is lost.
//
// The unit is the segment. The engine shows a chain only when its positions add up (each once, for
// every layer and head), and it may begin a chain's last segment at any token that a sealed segment
// ends at or forks at; so a session that cannot show its chain goes back to where the newest whole
// ancestor was forked or sealed, and one without such an ancestor goes whole. Less than a segment
// cannot go: its clusters replace and hide clusters of its ancestors, and an entry that is merely
// left out would be missing in every answer without anybody knowing.
//
// Threading:  pure function.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kv-node/util/store_check.h"

namespace cairn::kv {

struct RepairPlan {
  struct Cut {
    SessionId session;
    std::int64_t old_token_count = 0;
    // 0: nothing of the session is left, its row goes.
    SegmentId parent;
    std::int64_t token_count = 0;
    SegmentId segment;  // the new, empty one; 0 when there is no parent
  };
  std::vector<Cut> cuts;
  std::vector<SessionId> unreadable_sessions;              // their rows go
  std::vector<SegmentId> removed_segments;                 // all their rows go
  std::map<SegmentId, Regions> right_regions;              // allocation records written anew
  std::vector<std::pair<Family, std::string>> stray_rows;  // they go
  // Keys of the family `runs`. Rows of older segments, which may say something else than those that
  // are lost, do not take their place.
  std::vector<std::string> lost_index_runs;
  std::optional<std::int64_t> next_id;  // to be stored

  bool empty() const {
    return cuts.empty() && unreadable_sessions.empty() && removed_segments.empty() &&
           right_regions.empty() && stray_rows.empty() && lost_index_runs.empty() && !next_id;
  }
};

// Empty when the survey is incomplete: rows that were not seen may be what others need.
RepairPlan PlanRepair(const StoreSurvey& survey);

// One line for each thing that is lost or changed: "repair action=session_cut session=3 ...".
std::vector<std::string> DescribePlan(const RepairPlan& plan, const StoreSurvey& survey);

// The plan as one batch: after a crash all of it is done or nothing. DATA_LOSS when a row that it
// must read cannot be read.
absl::StatusOr<MetaBatch> MakeRepairBatch(const RepairPlan& plan, MetaReader& reader);

}  // namespace cairn::kv
