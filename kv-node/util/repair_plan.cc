#include "kv-node/util/repair_plan.h"

#include <algorithm>
#include <optional>
#include <set>

#include "common/base/fail_point.h"
#include "kv-node/engine/id_source.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/layout/index_run.h"

namespace cairn::kv {
namespace {

// How many segments of a chain, from the open one on, must go. The chain's size: all.
std::size_t LostCount(const StoreSurvey& survey, const SessionEntry& session,
                      const std::vector<SegmentId>& chain) {
  if (!survey.ReachesRoot(chain)) return chain.size();
  std::size_t lost = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    if (survey.segments.at(chain[i]).lost) lost = i + 1;
  }
  if (lost > 0 || !session.lost) return lost;
  // Damaged allocation records keep a session from being opened too, and so do damaged rows of
  // index runs: the ones are written anew first, the others go.
  if (survey.segments.at(chain.front()).right_regions) return 0;
  for (const SegmentId id : chain) {
    if (survey.segments.at(id).drops_rows) return 0;
  }
  // Which one is wrong is not known: the newest that holds tokens. The next round looks at what is
  // left.
  while (lost < chain.size()) {
    const SegmentEntry& segment = survey.segments.at(chain[lost++]);
    if (segment.token_count > segment.start) break;
  }
  return lost;
}

std::optional<RepairPlan::Cut> CutOf(const StoreSurvey& survey, SessionId id,
                                     const SessionEntry& session,
                                     const std::vector<SegmentId>& chain) {
  const std::size_t lost = LostCount(survey, session, chain);
  if (lost == 0 && !chain.empty()) return std::nullopt;
  RepairPlan::Cut cut;
  cut.session = id;
  cut.old_token_count = session.token_count;
  if (lost == chain.size()) return cut;
  // Links between a segment that is not lost and its parent have been checked, those of the lost
  // one perhaps not.
  const SegmentEntry& parent = survey.segments.at(chain[lost]);
  const std::int64_t start = survey.segments.at(chain[lost - 1]).start;
  if (!parent.sealed) return cut;
  cut.parent = chain[lost];
  cut.token_count =
      start > parent.start && start <= parent.token_count ? start : parent.token_count;
  return cut;
}

std::int64_t OwnTokensOf(const StoreSurvey& survey, SegmentId segment) {
  return survey.segments.at(segment).token_count - survey.segments.at(segment).start;
}

}  // namespace

RepairPlan PlanRepair(const StoreSurvey& survey) {
  RepairPlan plan;
  if (survey.incomplete && !FailPoint("repair: half read metadata is repaired")) return plan;
  const std::int64_t known_next = survey.next_id.value_or(0);
  // Ids above the largest that is seen may have been used by what is gone.
  std::int64_t next_id =
      known_next > survey.largest_id ? known_next : survey.largest_id + 2 * kIdBlockCount;
  bool store_next_id = next_id != known_next && survey.largest_id > 0;
  std::set<SegmentId> kept;
  for (const auto& [id, session] : survey.sessions) {
    if (!session.readable) {
      plan.unreadable_sessions.push_back(id);
      continue;
    }
    const std::vector<SegmentId> chain = survey.ChainOf(session.segment);
    std::optional<RepairPlan::Cut> cut = CutOf(survey, id, session, chain);
    if (!cut) {
      kept.insert(chain.begin(), chain.end());
      continue;
    }
    if (cut->parent.value() != 0) {
      cut->segment = SegmentId(next_id++);
      store_next_id = true;
      kept.insert(std::find(chain.begin(), chain.end(), cut->parent), chain.end());
    }
    plan.cuts.push_back(*cut);
  }
  for (const auto& [id, segment] : survey.segments) {
    if (!kept.contains(id)) {
      plan.removed_segments.push_back(id);
    } else if (segment.right_regions) {
      plan.right_regions[id] = *segment.right_regions;
    }
  }
  plan.stray_rows = survey.stray_rows;
  plan.lost_index_runs = survey.lost_index_runs;
  if (store_next_id) plan.next_id = next_id;
  return plan;
}

std::vector<std::string> DescribePlan(const RepairPlan& plan, const StoreSurvey& survey) {
  std::vector<std::string> lines;
  for (const RepairPlan::Cut& cut : plan.cuts) {
    if (cut.parent.value() == 0) {
      lines.push_back(fmt::format("repair action=session_dropped session={} lost_tokens={}",
                                  cut.session, cut.old_token_count));
    } else {
      lines.push_back(fmt::format(
          "repair action=session_cut session={} tokens={} lost_tokens={} parent={}", cut.session,
          cut.token_count, cut.old_token_count - cut.token_count, cut.parent));
    }
  }
  for (const SessionId session : plan.unreadable_sessions) {
    lines.push_back(fmt::format(
        "repair action=session_dropped session={} reason=\"its row cannot be read\"", session));
  }
  for (const SegmentId segment : plan.removed_segments) {
    lines.push_back(fmt::format("repair action=segment_removed segment={} tokens={}", segment,
                                OwnTokensOf(survey, segment)));
  }
  for (const auto& region : plan.right_regions) {
    lines.push_back(fmt::format("repair action=allocation_rewritten segment={}", region.first));
  }
  for (const auto& row : plan.stray_rows) {
    lines.push_back(
        fmt::format("repair action=row_removed row={}", RowName(row.first, row.second)));
  }
  for (const std::string& key : plan.lost_index_runs) {
    lines.push_back(
        fmt::format("repair action=index_run_dropped row={}", RowName(Family::kRuns, key)));
  }
  if (plan.next_id && (!survey.next_id || *survey.next_id <= survey.largest_id)) {
    lines.push_back(fmt::format("repair action=next_id_written next_id={}", *plan.next_id));
  }
  return lines;
}

absl::StatusOr<MetaBatch> MakeRepairBatch(const RepairPlan& plan, MetaReader& reader) {
  MetaBatch batch;
  for (const RepairPlan::Cut& cut : plan.cuts) {
    if (cut.parent.value() == 0) {
      batch.Delete(Family::kSessions, SessionKeyBytes(cut.session));
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                           reader.Get(Family::kSessions, SessionKeyBytes(cut.session)));
    if (!bytes) return DataLoss("session {} is gone", cut.session);
    CAIRN_ASSIGN_OR_RETURN(SessionRow session, DecodeSessionRow(*bytes));
    CAIRN_ASSIGN_OR_RETURN(const SegmentRow parent, LoadSegmentRow(reader, cut.parent));
    // As a fork of the parent is created; a client that was attached must not go on.
    SegmentRow segment;
    segment.app = session.app;
    segment.parent = cut.parent;
    segment.start = cut.token_count;
    segment.token_count = cut.token_count;
    segment.key = parent.key;
    segment.layout = parent.layout;
    session.segment = cut.segment;
    session.epoch = Epoch(session.epoch.value() + 1);
    session.owner = {};
    session.token_count = cut.token_count;
    session.flash_bytes = 0;
    batch.Put(Family::kSegments, SegmentHeadKey(cut.segment), EncodeSegmentRow(segment));
    batch.Put(Family::kSessions, SessionKeyBytes(cut.session), EncodeSessionRow(session));
  }
  for (const SessionId session : plan.unreadable_sessions) {
    batch.Delete(Family::kSessions, SessionKeyBytes(session));
  }
  for (const SegmentId segment : plan.removed_segments) DeleteSegmentRows(batch, segment);
  for (const auto& [segment, regions] : plan.right_regions) {
    batch.DeletePrefix(Family::kPools, SegmentPrefix(segment));
    for (const auto& [region, bits] : regions) {
      batch.Put(Family::kPools, RegionKey(segment, region), EncodeRegion(bits));
    }
  }
  for (const auto& [family, key] : plan.stray_rows) batch.Delete(family, key);
  IndexRun lost;
  lost.hides_older = true;
  for (const std::string& key : plan.lost_index_runs) {
    batch.Put(Family::kRuns, key, EncodeIndexRun(lost));
  }
  if (plan.next_id) {
    batch.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(*plan.next_id));
  }
  return batch;
}

}  // namespace cairn::kv
