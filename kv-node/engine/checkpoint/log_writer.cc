#include "kv-node/engine/checkpoint/log_writer.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "kv-node/engine/place/placement_order.h"

namespace cairn::kv {
namespace {

std::int64_t PagesOf(std::int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

// Keeps the first `count` entries in items[at] and puts the others behind it.
void SplitItem(std::vector<LogItem>& items, std::size_t at, std::int64_t count,
               std::int64_t entry_bytes) {
  LogItem& item = items[at];
  const auto bytes = static_cast<std::size_t>(count * entry_bytes);
  LogItem rest = LogItem::New(item.positions.Slice(count, item.positions.count() - count),
                              item.entries.substr(bytes));
  rest.rest_of_again = item.again || item.rest_of_again;
  item.positions = item.positions.Slice(0, count);
  item.entries = item.entries.substr(0, bytes);
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(rest));
}

}  // namespace

LogWriter::LogRuns::Run& LogWriter::LogRuns::RunFor(std::int64_t record_bytes) {
  while (runs[current].room_bytes() < record_bytes) {
    ++current;
    CAIRN_CHECK(current < runs.size());
  }
  return runs[current];
}

absl::Status LogWriter::Write(LogPlan& plan, const PageSet& pages) {
  plan.order = OrderOfRows(plan);
  TakeRecords(plan, pages);
  LogRuns runs;
  absl::Status status = AllocateRuns(plan, runs);
  if (!status.ok() && plan.again_bytes > 0) {
    // The bound on runs (rule 19) gives way to storing what is new.
    DropAgain(plan);
    runs = LogRuns();
    status = AllocateRuns(plan, runs);
  }
  CAIRN_RETURN_IF_ERROR(status);
  for (const ClusterKey& key : plan.order) {
    state_.PutParts(key, MakeRecords(key, plan.parts.at(key), runs));
  }
  runs.BeginCarried();
  std::map<ClusterKey, std::vector<Part>> carried;
  for (auto& [key, items] : plan.carried) carried[key] = MakeRecords(key, items, runs);
  state_.PutCarried(std::move(carried));
  const std::int64_t written_bytes = WriteRuns(runs);
  if (plan.again_bytes > 0) {
    // Rounded up to pages, in proportion.
    context_.io->CountAsRelog(written_bytes * plan.again_bytes /
                              (plan.again_bytes + plan.new_bytes));
  }
  context_.pending_bytes -= state_.pending_bytes();
  state_.TakePending();
  return absl::OkStatus();
}

std::vector<ClusterKey> LogWriter::OrderOfRows(const LogPlan& plan) const {
  std::map<LayerHead, std::vector<ClusterId>> owners;
  std::map<LayerHead, std::vector<ClusterPair>> links;
  for (const auto& [key, items] : plan.parts) {
    const LayerHead owner(key.layer, key.head);
    owners[owner].push_back(key.cluster_id);
    for (const ClusterLink& link : placer_.LinksOf(key)) {
      if (!plan.parts.contains({key.layer, key.head, link.cluster})) continue;
      const ClusterId with =
          FailPoint("log runs do not follow the links") ? key.cluster_id : link.cluster;
      links[owner].push_back({key.cluster_id, with, link.count});
    }
  }
  std::vector<ClusterKey> order;
  order.reserve(plan.parts.size());
  for (const auto& [owner, ids] : owners) {
    for (const ClusterId id : OrderInChains(ids, std::move(links[owner]))) {
      order.push_back({owner.first, owner.second, id});
    }
  }
  return order;
}

std::int64_t LogWriter::WriteRuns(LogRuns& runs) {
  std::int64_t written_bytes = 0;
  for (LogRuns::Run& run : runs.runs) {
    space_.AddLogRun(run.extent);
    written_bytes += run.extent->size_bytes();
    writes_.Write(run.extent, run.extent->first(), std::move(run.image), WriteCause::kLog);
  }
  return written_bytes;
}

// The rows name the run at once; a commit names it with the next checkpoint, and a crash before
// that leaves its pages free.
void LogWriter::Spill() {
  auto plan = std::make_shared<LogPlan>();
  LogPlanner(state_).PlanSpill(*plan);
  if (plan->pages_to_read.empty()) {
    FinishSpill(*plan, PageSet());
    return;
  }
  std::vector<PageIndex> pages = std::move(plan->pages_to_read);
  host_.ReadAtHead(std::move(pages), AfterRead::kIsTriedAgain, [this, plan](const PageSet& set) {
    FinishSpill(*plan, set);
    spill_failed_ = !placer_.error().ok();
  });
}

void LogWriter::FinishSpill(LogPlan& plan, const PageSet& pages) {
  placer_.ForgetPlans();  // as at a cut
  if (!plan.pending.empty()) ++context_.counts.spill_count;
  placer_.SetError(Write(plan, pages));
  if (placer_.error().ok() && !FailPoint("spilled runs that nothing names are kept")) {
    space_.ForgetUnnamedRuns(state_.open());
  }
}

absl::Status LogWriter::WriteRecords(LogPlan& plan, const std::function<void()>& before) {
  plan.order = OrderOfRows(plan);
  LogRuns runs;
  CAIRN_RETURN_IF_ERROR(AllocateRuns(plan, runs));
  before();
  for (const ClusterKey& key : plan.order) {
    state_.PutParts(key, MakeRecords(key, plan.parts.at(key), runs));
  }
  WriteRuns(runs);
  return absl::OkStatus();
}

// Records that are written again, from the pages that were read. One that fails its check keeps its
// place until the cluster is repaired.
void LogWriter::TakeRecords(LogPlan& plan, const PageSet& pages) {
  plan.ForEachRow([&](const ClusterKey& key, std::vector<LogItem>& items) {
    const std::int64_t entry_bytes = state_.EntryBytes(key);
    for (LogItem& item : items) {
      if (!item.again) continue;
      const Part& part = *item.existing;
      const PartState state = CheckPart(context_.store_id, part, entry_bytes, part.count(), pages);
      if (state != PartState::kIntact) {
        context_.NoteState(state);
        item.again = false;
        plan.again_bytes -= part.count() * entry_bytes;
        continue;
      }
      const std::span<const std::byte> bytes =
          pages.Bytes(*part.extent, RangeOf(part, entry_bytes, 0, part.count()));
      item.positions = part.positions;
      item.entries = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
  });
}

void LogWriter::DropAgain(LogPlan& plan) {
  plan.ForEachRow([&](const ClusterKey&, std::vector<LogItem>& items) {
    // The rests of records that were cut stay with the record that they came from.
    std::erase_if(items, [](const LogItem& item) { return item.rest_of_again; });
    for (LogItem& item : items) item.again = false;
  });
  plan.again_bytes = 0;
}

absl::Status LogWriter::AllocateRuns(LogPlan& plan, LogRuns& runs) const {
  const std::int64_t all_bytes = plan.new_bytes + plan.again_bytes;
  if (all_bytes == 0) return absl::OkStatus();
  const std::int64_t carried_bytes = plan.carried_apart ? CarriedRecordBytes(plan) : 0;
  for (const std::int64_t bytes : {all_bytes - carried_bytes, carried_bytes}) {
    if (bytes == 0) continue;
    absl::StatusOr<ExtentRef> whole = context_.Allocate(ExtentKind::kLogRun, PagesOf(bytes));
    if (!whole.ok()) {
      runs.runs.clear();
      runs.first_of_carried = 0;
      CAIRN_RETURN_IF_ERROR(AllocatePieces(plan, all_bytes, runs));
      break;
    }
    if (!runs.runs.empty()) runs.first_of_carried = runs.runs.size();
    runs.runs.push_back({*std::move(whole), nullptr, 0});
  }
  std::int64_t record_count = 0;
  plan.ForEachRow([&](const ClusterKey&, const std::vector<LogItem>& items) {
    record_count += std::count_if(items.begin(), items.end(),
                                  [](const LogItem& item) { return item.needs_record(); });
  });
  CAIRN_ASSIGN_OR_RETURN(runs.next_id, context_.ids->Next(record_count));
  for (LogRuns::Run& run : runs.runs) {
    run.image = context_.io->buffers().MakeZeroed(run.extent->size_bytes());
    run.used_bytes = 0;
  }
  return absl::OkStatus();
}

// Of carried entries that get a new record.
std::int64_t LogWriter::CarriedRecordBytes(const LogPlan& plan) {
  std::int64_t bytes = 0;
  for (const auto& [key, items] : plan.carried) {
    for (const LogItem& item : items) {
      if (item.needs_record()) bytes += std::ssize(item.entries);
    }
  }
  return bytes;
}

// The longest free ranges, one after the other, and records cut so that each fits into its run.
absl::Status LogWriter::AllocatePieces(LogPlan& plan, std::int64_t left_bytes,
                                       LogRuns& runs) const {
  const FreeMap& map = *context_.free_map;
  const auto full = [&, wanted_count = PagesOf(left_bytes)] {
    return map.Full(wanted_count, "for a checkpoint");
  };
  if (map.page_count() - map.used_count() < PagesOf(left_bytes)) return full();
  const std::vector<FreeMap::Range> ranges = map.FreeRanges();
  auto next = ranges.begin();
  absl::Status status;
  plan.ForEachRow([&](const ClusterKey& key, std::vector<LogItem>& items) {
    const std::int64_t entry_bytes = state_.EntryBytes(key);
    for (std::size_t i = 0; i < items.size() && status.ok(); ++i) {
      if (!items[i].needs_record()) continue;
      while (runs.runs.empty() || runs.runs.back().room_bytes() < entry_bytes) {
        // The ranges that follow are shorter still.
        if (next == ranges.end() || next->count * kPageBytes < entry_bytes) {
          status = full();
          return;
        }
        const std::int64_t page_count = std::min(next->count, PagesOf(left_bytes));
        runs.runs.push_back(
            {context_.AllocateAt(ExtentKind::kLogRun, next->first, page_count), nullptr, 0});
        ++next;
      }
      LogRuns::Run& run = runs.runs.back();
      const std::int64_t fit_count = run.room_bytes() / entry_bytes;
      if (fit_count < items[i].positions.count()) SplitItem(items, i, fit_count, entry_bytes);
      const std::int64_t bytes = items[i].positions.count() * entry_bytes;
      run.used_bytes += bytes;
      left_bytes -= bytes;
    }
  });
  return status;
}

std::vector<Part> LogWriter::MakeRecords(const ClusterKey& key, const std::vector<LogItem>& items,
                                         LogRuns& runs) const {
  const std::int64_t entry_bytes = state_.EntryBytes(key);
  std::vector<Part> parts;
  for (const LogItem& item : items) {
    if (!item.needs_record()) {
      parts.push_back(*item.existing);
      continue;
    }
    const auto bytes = static_cast<std::int64_t>(item.entries.size());
    LogRuns::Run& run = runs.RunFor(bytes);
    Part part;
    part.id = PartId(runs.next_id++);
    part.SetExtent(run.extent);
    part.offset_bytes = run.used_bytes;
    part.positions = item.positions;
    std::memcpy(run.image->data() + run.used_bytes, item.entries.data(), item.entries.size());
    run.used_bytes += bytes;
    SetCrcs(context_.store_id, part, entry_bytes, 0, part.count(), *run.image, 0);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace cairn::kv
