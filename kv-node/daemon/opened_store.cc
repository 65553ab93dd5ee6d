#include "kv-node/daemon/opened_store.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/thread.h"
#include "common/daemon/paths.h"
#include "common/log/log.h"
#include "kv-node/daemon/calibration.h"
#include "kv-node/daemon/resize.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<OpenedStore>> OpenedStore::Open(
    const KvNodeConfig& config, User user, const std::atomic<int>& stop_signal) {
  const StartProgress progress(stop_signal);
  std::unique_ptr<OpenedStore> store(new OpenedStore(config, user));
  CAIRN_RETURN_IF_ERROR(MakeDirectory(config.data_dir(), "data_dir"));
  for (const char* name : {"", kExtentFileName, kMetaDirectoryName}) {
    CAIRN_RETURN_IF_ERROR(CheckPrivate((fs::path(config.data_dir()) / name).string()));
  }
  CAIRN_RETURN_IF_ERROR(store->OpenExtentFile(progress));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<MetaStore> meta, store->OpenMetadata());
  CAIRN_RETURN_IF_ERROR(ResizeStore(*store->extent_file_, *meta, config, progress));
  meta->ExpectExtentBytes(store->extent_file_->size_bytes());
  // The threads of the engine inherit it, those of the metadata do not.
  const ServingPriority realtime(config.realtime_priority());
  CAIRN_RETURN_IF_ERROR(Annotate(realtime.status(), "realtime_priority"));
  CAIRN_RETURN_IF_ERROR(store->OpenEngine(std::move(meta)));
  return store;
}

OpenedStore::~OpenedStore() {
  // Of a store that could not be opened nothing is recorded: its parts may not belong together.
  if (engine_ == nullptr) return;
  engine_.reset();
  RecordClosedMetadata();
}

std::string OpenedStore::store_id() const {
  const StoreId& id = extent_file_->store_id();
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

absl::Status OpenedStore::OpenExtentFile(const StartProgress& progress) {
  const ExtentFileOptions options{.directory = config_.data_dir()};
  absl::StatusOr<std::unique_ptr<ExtentFile>> file = ExtentFile::Open(options);
  if (file.status().code() == absl::StatusCode::kNotFound) {
    const fs::path meta = fs::path(config_.data_dir()) / kMetaDirectoryName;
    std::error_code error;
    if (fs::exists(meta, error)) {
      return FailedPrecondition(
          "store {} has metadata ({}) but no extent file {}: put the file back (is all of the "
          "directory mounted?), or begin with an empty store in another data_dir",
          config_.data_dir(), meta.string(), kExtentFileName);
    }
    const fs::path path = fs::path(config_.data_dir()) / kExtentFileName;
    const std::int64_t size_bytes = config_.extent_file_bytes() == kExtentFileBytesKept
                                        ? kExtentFileBytesDefault
                                        : config_.extent_file_bytes();
    LogInfo("create file={} size_bytes={} prefill={}", path.string(), size_bytes,
            config_.prefill_extent_file());
    file = ExtentFile::Create(options, {.size_bytes = size_bytes,
                                        .prefill = config_.prefill_extent_file(),
                                        .progress = progress.Of(kPrefillStep, path.string())});
  }
  CAIRN_ASSIGN_OR_RETURN(extent_file_, std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MetaStore>> OpenedStore::OpenMetadata() {
  MetaOptions options;
  options.path = (fs::path(config_.data_dir()) / kMetaDirectoryName).string();
  options.sequence_min = extent_file_->superblock().metadata_sequence;
  options.extent_path = extent_file_->path();
  options.store_id = store_id();
  options.on_clean_close = [this](std::uint64_t sequence) { closed_sequence_ = sequence; };
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<MetaStore> meta, MetaStore::Open(std::move(options)));
  CAIRN_RETURN_IF_ERROR(CheckStoreId(*meta, store_id(), extent_file_->path()));
  return meta;
}

absl::StatusOr<std::optional<DeviceProfile>> OpenedStore::FindProfile(
    const FileDeviceOptions& options, MetaStore& meta) {
  CAIRN_ASSIGN_OR_RETURN(
      std::optional<DeviceProfile> stored,
      LoadDeviceProfile(meta.reader(), options.model ? options.model->name : ""));
  if (stored) return stored;
  if (!config_.prefill_extent_file()) {
    LogInfo("device not calibrated reason=\"prefill_extent_file is false\"");
    return std::nullopt;
  }
  absl::StatusOr<DeviceProfile> measured = MeasureDeviceProfile(extent_file_->fd(), options, meta);
  if (!measured.ok()) {
    // Serving comes first; the next start tries again.
    LogWarning("device not calibrated error=\"{}\"", Message(measured.status()));
    return std::nullopt;
  }
  LogInfo("device calibrated {}", ProfileSummary(*measured));
  return *std::move(measured);
}

absl::Status OpenedStore::OpenEngine(std::unique_ptr<MetaStore> meta) {
  FileDeviceOptions device_options;
  CAIRN_ASSIGN_OR_RETURN(device_options.engine, ParseIoEngine(config_.io_engine()));
  device_options.size_bytes = extent_file_->size_bytes();
  CAIRN_ASSIGN_OR_RETURN(device_options.model, DeviceModelOf(config_));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<DeviceProfile> profile,
                         FindProfile(device_options, *meta));
  if (config_.experiment().queue_depth() != kQueueDepthFromProfile) {
    device_options.queue_depth = config_.experiment().queue_depth();
  } else if (profile) {
    device_options.queue_depth = profile->queue_depth;
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                         OpenFileDevice(extent_file_->fd(), device_options));
  io_engine_ = device->name();

  const MetaStore& metadata = *meta;  // the engine's from now on
  EngineOptions engine_options;
  engine_options.attached_sessions_max = config_.attached_sessions_max();
  engine_options.pending_bytes_max = config_.pending_bytes_max();
  engine_options.io_bytes_max = config_.io_bytes_max();
  engine_options.answers_are_held = user_ == User::kThisProcess;
  engine_options.pool_sharing = config_.experiment().pool_sharing();
  engine_options.co_retrieval = config_.experiment().co_retrieval();
  engine_options.place_entries_min = config_.experiment().place_entries_min_count();
  engine_options.defragment = Defragments(config_, kPowerSupplyDir);
  engine_options.arena_bytes_max = config_.arena_bytes_max();
  CAIRN_ASSIGN_OR_RETURN(engine_options.replacement,
                         ParseReplacementPolicy(config_.experiment().cache_replacement()));
  const MergeLimits merge = profile ? MergeLimitsOf(*profile) : kMergeLimitsUnmeasured;
  engine_options.merge_gap_bytes = merge.gap_bytes;
  engine_options.merge_piece_bytes_max = merge.piece_bytes_max;
  if (config_.experiment().merge_gap_bytes() != kMergeGapFromProfile) {
    engine_options.merge_gap_bytes = config_.experiment().merge_gap_bytes();
  }
  CAIRN_ASSIGN_OR_RETURN(engine_, Engine::Open(engine_options, extent_file_->store_id(),
                                               std::move(device), std::move(meta)));
  // The engine has reserved ids by a change that is only in the log so far: a store that later
  // comes without this log is found out too.
  return extent_file_->RecordMetadataSequence(metadata.latest_sequence());
}

void OpenedStore::RecordClosedMetadata() {
  if (!closed_sequence_) return;
  const absl::Status status = extent_file_->RecordMetadataSequence(*closed_sequence_);
  if (status.ok()) return;
  // What the superblock said at the start holds still.
  LogWarning("superblock not updated path={} error=\"{}\"", extent_file_->path(), Message(status));
}

}  // namespace cairn::kv
