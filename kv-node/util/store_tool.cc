#include "kv-node/util/store_tool.h"

#include <memory>
#include <optional>
#include <utility>

#include "common/base/fail_point.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/meta/meta_store.h"
#include "kv-node/meta/sequence_check.h"
#include "kv-node/util/repair_plan.h"
#include "kv-node/util/store_check.h"

namespace cairn::kv {
namespace {

// Every round leaves a chain shorter; a store that needs more is repaired by a second call.
constexpr int kRepairRoundsMax = 64;

// The store, and not the call, is what is wrong.
bool IsDamage(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss ||
         status.code() == absl::StatusCode::kFailedPrecondition;
}

class Tool {
 public:
  Tool(const ToolOptions& options, const LineSink& print) : options_(options), print_(print) {}

  // OK with no file open: it is damaged, which is a finding.
  absl::Status OpenExtentFile(bool read_only) {
    absl::StatusOr<std::unique_ptr<ExtentFile>> file = ExtentFile::Open(
        {.directory = options_.directory, .read_only = read_only, .lock_wait = options_.lock_wait});
    if (!file.ok() && !IsDamage(file.status())) return file.status();
    if (!file.ok()) {
      Tell(FindingKind::kSuperblock, file.status());
      return absl::OkStatus();
    }
    file_ = *std::move(file);
    copy_damaged_ = !file_->damaged_copy().ok();
    return absl::OkStatus();
  }

  // Looks at everything. nullopt: rows cannot be read at all.
  absl::StatusOr<std::optional<StoreSurvey>> Check() {
    finding_count_ = 0;
    if (file_ == nullptr) {
      finding_count_ = 1;  // has been told
      return std::optional<StoreSurvey>();
    }
    if (copy_damaged_) {
      Tell(FindingKind::kSuperblock, file_->damaged_copy());
    }
    const absl::StatusOr<MetaLook> meta = LookAtMetadata(MetaOptionsOf(options_.directory, *file_));
    absl::Status status = meta.status();
    if (status.ok()) status = CheckStoreId(*meta);
    // The extent file is there, so this is a store without its metadata.
    if (IsDamage(status) || absl::IsNotFound(status)) {
      Tell(FindingKind::kMetadata, status);
      return std::optional<StoreSurvey>();
    }
    if (!status.ok()) return status;
    StoreView view{file_->store_id(),   file_->fd(),        file_->path(),
                   file_->page_count(), meta->reader.get(), options_.drop_unreadable};
    CAIRN_ASSIGN_OR_RETURN(StoreSurvey survey,
                           CheckStore(view, [this](const Finding& finding) { Tell(finding); }));
    return std::optional<StoreSurvey>(std::move(survey));
  }

  absl::Status Commit(const RepairPlan& plan) {
    std::optional<std::uint64_t> closed;
    MetaOptions meta_options = MetaOptionsOf(options_.directory, *file_);
    meta_options.on_clean_close = [&closed](std::uint64_t sequence) { closed = sequence; };
    {
      CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<MetaStore> meta,
                             MetaStore::Open(std::move(meta_options)));
      CAIRN_ASSIGN_OR_RETURN(MetaBatch batch, MakeRepairBatch(plan, meta->reader()));
      CAIRN_RETURN_IF_ERROR(meta->CommitAndWait(std::move(batch)));
    }
    if (!closed) return Internal("the repaired metadata was not closed in order");
    return file_->RecordMetadataSequence(*closed);
  }

  void Print(const std::string& line) const { print_(line); }
  void Summarise(const std::optional<StoreSurvey>& survey) const {
    if (!survey) return Print(fmt::format("summary findings={}", finding_count_));
    Print(fmt::format(
        "summary findings={} sessions={} segments={} parts={} pages_checked={} pages_allocated={} "
        "pages_named={} pages={}",
        finding_count_, survey->sessions.size(), survey->segments.size(), survey->part_count,
        survey->checked_page_count, survey->allocated_page_count, survey->named_page_count,
        file_->page_count()));
  }
  std::int64_t finding_count() const { return finding_count_; }
  bool opened() const { return file_ != nullptr; }
  // Opening it for writing has written the damaged copy again.
  bool TakeCopyRepaired() { return std::exchange(copy_damaged_, false); }

 private:
  void Tell(const Finding& finding) {
    ++finding_count_;
    Print(FormatFinding(finding));
  }

  void Tell(FindingKind kind, const absl::Status& status) {
    Tell({.kind = kind, .reason = Message(status)});
  }

  absl::Status CheckStoreId(const MetaLook& meta) const {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> stored,
                           meta.reader->Get(Family::kConfig, kStoreIdKey));
    if (stored && *stored != MetaOptionsOf(options_.directory, *file_).store_id) {
      return FailedPrecondition("the metadata belongs to another extent file");
    }
    // A creation that was interrupted has neither rows nor an id.
    if (stored || meta.latest_sequence == 0) return absl::OkStatus();
    return DataLoss("the metadata has rows, but no store id");
  }

  const ToolOptions& options_;
  const LineSink& print_;
  std::unique_ptr<ExtentFile> file_;
  bool copy_damaged_ = false;
  std::int64_t finding_count_ = 0;
};

}  // namespace

MetaOptions MetaOptionsOf(const std::string& directory, const ExtentFile& file) {
  MetaOptions options;
  options.path = directory + "/" + kMetaDirectoryName;
  options.sequence_min = file.superblock().metadata_sequence;
  options.extent_path = file.path();
  const StoreId& id = file.store_id();
  options.store_id.assign(reinterpret_cast<const char*>(id.data()), id.size());
  return options;
}

absl::StatusOr<std::int64_t> VerifyStore(const ToolOptions& options, const LineSink& print) {
  Tool tool(options, print);
  CAIRN_RETURN_IF_ERROR(tool.OpenExtentFile(/*read_only=*/true));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<StoreSurvey> survey, tool.Check());
  tool.Summarise(survey);
  return tool.finding_count();
}

absl::StatusOr<std::int64_t> RepairStore(const ToolOptions& options, RepairMode mode,
                                         const LineSink& print) {
  Tool tool(options, print);
  // The exclusive lock is held until the end, so that what was found is what is repaired.
  CAIRN_RETURN_IF_ERROR(tool.OpenExtentFile(mode == RepairMode::kDryRun));
  for (int round = 0; round < kRepairRoundsMax; ++round) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<StoreSurvey> survey, tool.Check());
    tool.Summarise(survey);
    if (tool.finding_count() == 0 || !survey) break;
    if (survey->unreadable_page_count > 0) {
      tool.Print(
          fmt::format("left pages_unreadable={} advice=\"check the disk and repair again; with "
                      "--drop-unreadable what lies there is given up\"",
                      survey->unreadable_page_count));
    }
    const RepairPlan plan = PlanRepair(*survey);
    for (const std::string& line : DescribePlan(plan, *survey)) {
      tool.Print(mode == RepairMode::kDryRun ? line + " dry_run=1" : line);
    }
    if (mode == RepairMode::kDryRun && !FailPoint("repair: a dry run commits")) break;
    const bool copy_repaired = tool.TakeCopyRepaired();
    if (copy_repaired) tool.Print("repair action=superblock_rewritten");
    if (plan.empty() && !copy_repaired) break;  // nothing that can be done
    if (!plan.empty()) CAIRN_RETURN_IF_ERROR(tool.Commit(plan));
  }
  return tool.finding_count();
}

}  // namespace cairn::kv
