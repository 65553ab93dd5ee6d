#include "kv-node/engine/checkpoint/log_plan.h"

#include <algorithm>
#include <numeric>

#include "common/base/fail_point.h"

namespace cairn::kv {
namespace {

// Runs of a segment may have half as much again as what is named in them, and so much more.
constexpr std::int64_t kLogSlackBytes = std::int64_t{64} * kPageBytes;
// Of a run more than this is named: writing it again would free too little.
constexpr double kSettledShare = 0.75;

// Of two runs that are as good as each other, the one that lies before the other.
template <typename T>
bool LessAndBefore(const std::pair<T, const Extent*>& a, const std::pair<T, const Extent*>& b) {
  return a.first != b.first ? a.first < b.first : a.second->first() < b.second->first();
}

}  // namespace

// Records that carried entries have in this segment: any row may name them.
LogPlanner::RecordOf LogPlanner::CarriedRecords() const {
  std::map<std::pair<ClusterKey, std::int64_t>, const Part*> records;  // key without the id
  for (const auto& [key, parts] : state_.open().carried) {
    for (const Part& part : parts) {
      records[{{key.layer, key.head, ClusterId(0)}, part.positions.first()}] = &part;
    }
  }
  return [records = std::move(records)](const ClusterKey& key, std::int64_t position) {
    const auto found = records.find({{key.layer, key.head, ClusterId(0)}, position});
    return found == records.end() ? nullptr : found->second;
  };
}

absl::Status LogPlanner::PlanCheckpoint(const std::map<ClusterKey, CarriedEntries>& staged,
                                        LogPlan& plan) const {
  const RecordOf record_of = CarriedRecords();
  PlanPending(record_of, plan);
  for (const auto& carried : staged) {
    CAIRN_RETURN_IF_ERROR(PlanCarried(carried.first, carried.second, record_of, plan));
  }
  if (plan.carried_apart) PlanCarriedAgain(plan);
  if (!FailPoint("checkpoints do not bound log runs (rule 19)")) PlanStragglers(plan);
  return absl::OkStatus();
}

void LogPlanner::PlanCarriedAgain(LogPlan& plan) const {
  for (auto& [key, items] : plan.carried) {
    for (LogItem& item : items) {
      if (!item.existing) continue;
      plan.again_bytes += item.existing->count() * state_.EntryBytes(key);
      WriteAgain(key, item, plan);
    }
  }
}

void LogPlanner::WriteAgain(const ClusterKey& key, LogItem& item, LogPlan& plan) const {
  item.again = true;
  const Part& part = *item.existing;
  AddPages(part, state_.EntryBytes(key), part.count(), plan.pages_to_read);
}

void LogPlanner::PlanSpill(LogPlan& plan) const {
  plan.is_spill = true;
  PlanPending(CarriedRecords(), plan);
  for (const auto& [key, parts] : state_.open().carried) {
    if (FailPoint("a spill drops carried rows")) continue;
    for (const Part& part : parts) plan.carried[key].push_back(LogItem::Existing(part));
  }
  if (!FailPoint("spilled runs are not bounded")) PlanStragglers(plan);
}

void LogPlanner::PlanPending(const RecordOf& record_of, LogPlan& plan) const {
  plan.pending = state_.pending();  // shares the bytes
  for (const auto& [key, chunks] : plan.pending) {
    std::vector<LogItem>& items = plan.parts[key];
    for (Part& part : state_.open().parts.Find(key)) {
      items.push_back(LogItem::Existing(std::move(part)));
    }
    for (const PendingChunk& chunk : chunks) {
      PlanChunk(key, chunk, record_of, items, plan.new_bytes);
    }
  }
}

absl::Status LogPlanner::PlanCarried(const ClusterKey& key, const CarriedEntries& entries,
                                     const RecordOf& record_of, LogPlan& plan) const {
  std::vector<LogItem>& items = plan.carried[key];
  const std::int64_t entry_bytes = state_.EntryBytes(key);
  absl::Status status;
  entries.positions.ForEach([&](std::int64_t position) {
    if (const Part* record = record_of(key, position)) {
      items.push_back(LogItem::Existing(*record));
      return;
    }
    if (!entries.brought_positions.Contains(position)) {
      status = InvalidArgument(
          "checkpoint: position {} of layer {} head {} is carried without its bytes, and it has no "
          "record in this segment",
          position, key.layer, key.head);
      return;
    }
    const std::int64_t index = entries.brought_positions.CountBelow(position);
    const auto offset = static_cast<std::size_t>(index * entry_bytes);
    items.push_back(LogItem::New(
        Positions::Range(position, 1),
        std::string_view(entries.entries).substr(offset, static_cast<std::size_t>(entry_bytes))));
    plan.new_bytes += entry_bytes;
  });
  return status;
}

void LogPlanner::PlanChunk(const ClusterKey& key, const PendingChunk& chunk,
                           const RecordOf& record_of, std::vector<LogItem>& items,
                           std::int64_t& new_bytes) const {
  const std::int64_t entry_bytes = state_.EntryBytes(key);
  const std::int64_t record_entries_max = kPartBytesMax / entry_bytes;
  std::int64_t index = 0;
  std::int64_t first = 0;  // of the entries that have no record yet
  const auto flush = [&] {
    for (; first < index;) {
      const std::int64_t count = std::min(index - first, record_entries_max);
      items.push_back(LogItem::New(chunk.positions.Slice(first, count),
                                   std::string_view(*chunk.bytes)
                                       .substr(static_cast<std::size_t>(first * entry_bytes),
                                               static_cast<std::size_t>(count * entry_bytes))));
      new_bytes += count * entry_bytes;
      first += count;
    }
  };
  chunk.positions.ForEach([&](std::int64_t position) {
    if (const Part* record = record_of(key, position)) {
      flush();
      items.push_back(LogItem::Existing(*record));
      first = index + 1;
    }
    ++index;
  });
  flush();
}

// Runs that are not worth writing again: three quarters of their bytes are named, and at most one
// quarter by clusters that lie elsewhere too, which fewer runs would bring together.
ExtentSet LogPlanner::SettledRuns(const LogPlan& plan, const ExtentBytes& named_bytes) const {
  const SegmentParts& rows = state_.open().parts;
  ExtentBytes scattered_bytes;
  rows.rows().ForEachLogged([&](const ClusterKey& key, const std::vector<StoredPart>& parts) {
    const bool together = std::all_of(parts.begin(), parts.end(), [&](const StoredPart& part) {
      return part.first_page == parts.front().first_page;
    });
    if (together && !plan.parts.contains(key)) return;
    for (const StoredPart& part : parts) {
      if (part.kind != ExtentKind::kLogRun) continue;
      scattered_bytes[rows.log_runs().at(part.first_page).extent.get()] +=
          part.positions.count() * state_.EntryBytes(key);
    }
  });
  ExtentSet settled;
  for (const auto& [extent, named] : named_bytes) {
    const std::int64_t quarter_bytes = extent->size_bytes() / 4;
    if (named >= 3 * quarter_bytes && scattered_bytes[extent] <= quarter_bytes) {
      settled.insert(extent);
    }
  }
  return settled;
}

// Bytes that will be named in each log run once the plan is carried out.
ExtentBytes LogPlanner::NamedLogBytes(const LogPlan& plan) const {
  ExtentBytes named_bytes;
  const auto count_items = [&](const ClusterKey& key, const std::vector<LogItem>& items) {
    for (const LogItem& item : items) {
      if (item.existing && !item.again && IsLog(*item.existing)) {
        named_bytes[item.existing->extent.get()] += item.existing->count() * state_.EntryBytes(key);
      }
    }
  };
  const SegmentParts& rows = state_.open().parts;
  for (const auto& [first, run] : rows.log_runs()) named_bytes[run.extent.get()] = run.named_bytes;
  for (const auto& [key, items] : plan.parts) {  // these rows are replaced
    for (const StoredPart& part : rows.rows().Find(key)) {
      if (part.kind != ExtentKind::kLogRun) continue;
      named_bytes[rows.log_runs().at(part.first_page).extent.get()] -=
          part.positions.count() * state_.EntryBytes(key);
    }
  }
  for (const auto& [key, items] : plan.parts) count_items(key, items);
  for (const auto& [key, items] : plan.carried) count_items(key, items);
  std::erase_if(named_bytes, [](const auto& run) { return run.second == 0; });
  return named_bytes;
}

// Rule 19: when the new run would be one too many of its size class, what is still named in the
// runs of that class is written again in it, as far as memory has room for it. Of settled ones
// there are as many as the entries in them need: they stay, and when the others alone are not too
// many, those stay too that are more than half full.
ExtentSet LogPlanner::RunsToWriteAgain(LogPlan& plan) const {
  const ExtentBytes named_bytes = NamedLogBytes(plan);
  ExtentSet again;
  std::optional<ExtentSet> settled;
  std::int64_t read_bytes = 0;
  for (bool more = plan.new_bytes > 0; more;) {
    more = false;
    const std::int64_t bytes = plan.new_bytes + plan.again_bytes;
    const int size_class = LogRunClass((bytes + kPageBytes - 1) / kPageBytes);
    std::vector<std::pair<std::int64_t, const Extent*>> same;  // by what they name
    for (const auto& [extent, named] : named_bytes) {
      if (again.contains(extent) || LogRunClass(extent->page_count()) != size_class) continue;
      same.emplace_back(named, extent);
    }
    if (static_cast<int>(same.size()) + 1 <= kLogRunsMax) break;
    if (!settled) settled = SettledRuns(plan, named_bytes);
    std::erase_if(same, [&](const auto& run) {
      return settled->contains(run.second) &&
             !FailPoint("full log runs of whole clusters are merged");
    });
    const std::int64_t same_bytes = std::accumulate(
        same.begin(), same.end(), std::int64_t{0},
        [](std::int64_t sum, const auto& run) { return sum + run.second->size_bytes(); });
    const bool too_many = static_cast<int>(same.size()) + 1 > kLogRunsMax;
    const bool all = too_many && read_bytes + same_bytes <= kRelogReadBytesMax;
    std::sort(same.begin(), same.end(), LessAndBefore<std::int64_t>);
    for (const auto& [named, extent] : same) {
      // Of runs that are too long to be merged, or too few, those that free more than they write.
      const bool pays = 2 * named <= extent->size_bytes();
      const bool fits = again.empty() || read_bytes + extent->size_bytes() <= kRelogReadBytesMax;
      if (!all && (!pays || !fits)) break;
      again.insert(extent);
      plan.again_bytes += named;
      read_bytes += extent->size_bytes();
      more = true;
    }
  }
  if (plan.new_bytes > 0) AddSparseRuns(named_bytes, read_bytes, plan, again);
  return again;
}

// Clusters that split leave records that nothing names, and a run goes whole. So that a segment's
// runs have at most so much more than what is named in them, the emptiest are written again too. At
// a spill only those that no commit names: the others would not be free before the next checkpoint.
void LogPlanner::AddSparseRuns(const ExtentBytes& named_bytes, std::int64_t read_bytes,
                               LogPlan& plan, ExtentSet& again) const {
  std::int64_t size_bytes = plan.new_bytes + plan.again_bytes;
  std::int64_t all_named_bytes = size_bytes;
  std::vector<std::pair<double, const Extent*>> emptiest;  // by the share that is named
  for (const auto& [extent, named] : named_bytes) {
    if (again.contains(extent)) continue;
    size_bytes += extent->size_bytes();
    all_named_bytes += named;
    if (plan.is_spill && extent->committed()) continue;
    emptiest.emplace_back(static_cast<double>(named) / static_cast<double>(extent->size_bytes()),
                          extent);
  }
  std::sort(emptiest.begin(), emptiest.end(), LessAndBefore<double>);
  for (const auto& [share, extent] : emptiest) {
    const bool sparse = size_bytes > all_named_bytes * 3 / 2 + kLogSlackBytes &&
                        !FailPoint("log runs that hardly anything names stay (rule 19)");
    const bool fits = again.empty() || read_bytes + extent->size_bytes() <= kRelogReadBytesMax;
    if (!sparse || !fits || share > kSettledShare) break;
    const std::int64_t named = named_bytes.at(extent);
    again.insert(extent);
    plan.again_bytes += named;
    read_bytes += extent->size_bytes();
    size_bytes -= extent->size_bytes() - named;
  }
}

void LogPlanner::PlanStragglers(LogPlan& plan) const {
  const ExtentSet again = RunsToWriteAgain(plan);
  if (again.empty()) return;
  const SegmentParts& rows = state_.open().parts;
  rows.rows().ForEachLogged([&](const ClusterKey& key, const std::vector<StoredPart>& parts) {
    const bool names_one = std::any_of(parts.begin(), parts.end(), [&](const StoredPart& part) {
      return part.kind == ExtentKind::kLogRun &&
             again.contains(rows.log_runs().at(part.first_page).extent.get());
    });
    if (!names_one || plan.parts.contains(key)) return;
    for (Part& part : rows.Find(key)) plan.parts[key].push_back(LogItem::Existing(std::move(part)));
  });
  const auto mark = [&](const ClusterKey& key, std::vector<LogItem>& items) {
    for (LogItem& item : items) {
      if (item.again || !item.existing || !again.contains(item.existing->extent.get())) continue;
      WriteAgain(key, item, plan);
    }
  };
  for (auto& [key, items] : plan.parts) mark(key, items);
  for (auto& [key, items] : plan.carried) mark(key, items);
}

}  // namespace cairn::kv
