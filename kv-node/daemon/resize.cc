#include "kv-node/daemon/resize.h"

#include <algorithm>
#include <memory>

#include "common/log/log.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/defragment/extent_mover.h"
#include "kv-node/layout/file_calls.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {
namespace {

// What was measured on a smaller file may be the speed of a cache that held all of it. Without a
// profile the flash is measured as at a first start.
absl::Status ForgetProfiles(const ExtentFile& file, MetaStore& meta) {
  if (HasUnwrittenSpace(file.fd(), file.size_bytes())) return absl::OkStatus();
  MetaBatch batch;
  batch.DeletePrefix(Family::kConfig, std::string(kDeviceProfileKeyPrefix));
  return meta.CommitAndWait(std::move(batch));
}

absl::Status Grow(ExtentFile& file, MetaStore& meta, const KvNodeConfig& config,
                  const StartProgress& progress) {
  CAIRN_RETURN_IF_ERROR(file.Grow({.size_bytes = config.extent_file_bytes(),
                                   .prefill = config.prefill_extent_file(),
                                   .progress = progress.Of(kPrefillStep, file.path())}));
  return ForgetProfiles(file, meta);
}

absl::Status DoesNotFit(const ExtentFile& file, const KvNodeConfig& config,
                        const MoveResult& moved) {
  const std::int64_t used_bytes = moved.used_page_count * kPageBytes;
  const bool scattered = used_bytes <= config.extent_file_bytes();
  const std::int64_t least_bytes =
      std::max(scattered ? moved.free_from * kPageBytes : used_bytes, kExtentFileBytesMin);
  return ResourceExhausted(
      "extent_file_bytes is {}, but {} has {} bytes in use{}: choose {} or more, or leave it out "
      "to "
      "keep the {} bytes that the store has; in a store of that size conversations that are not "
      "needed can be deleted first",
      config.extent_file_bytes(), file.path(), used_bytes,
      scattered ? ", in pieces that do not all find a place in so few" : "", least_bytes,
      file.size_bytes());
}

absl::Status Shrink(ExtentFile& file, MetaStore& meta, const KvNodeConfig& config,
                    const StartProgress& progress) {
  const std::int64_t page_count = config.extent_file_bytes() / kPageBytes;
  MoveResult moved;
  {
    CAIRN_ASSIGN_OR_RETURN(const IoEngine engine, ParseIoEngine(config.io_engine()));
    CAIRN_ASSIGN_OR_RETURN(
        const std::unique_ptr<Device> device,
        OpenFileDevice(file.fd(), {.engine = engine, .size_bytes = file.size_bytes()}));
    CAIRN_ASSIGN_OR_RETURN(moved,
                           MoveExtentsBelow(meta, *device,
                                            {.page_count = file.page_count(),
                                             .end = page_count,
                                             .progress = progress.Of(kMoveStep, file.path())}));
  }
  if (moved.free_from > page_count) return DoesNotFit(file, config, moved);
  LogInfo("moved file={} bytes={}", file.path(), moved.moved_bytes);
  return file.Shrink(page_count);
}

}  // namespace

absl::Status ResizeStore(ExtentFile& file, MetaStore& meta, const KvNodeConfig& config,
                         const StartProgress& progress) {
  const std::int64_t page_count = config.extent_file_bytes() / kPageBytes;
  const std::int64_t old_bytes = file.size_bytes();
  if (config.extent_file_bytes() != kExtentFileBytesKept && page_count != file.page_count()) {
    LogInfo("resize file={} from_bytes={} to_bytes={} prefill={}", file.path(), old_bytes,
            page_count * kPageBytes, config.prefill_extent_file());
    CAIRN_RETURN_IF_ERROR(page_count > file.page_count() ? Grow(file, meta, config, progress)
                                                         : Shrink(file, meta, config, progress));
    LogInfo("resized file={} from_bytes={} to_bytes={}", file.path(), old_bytes, file.size_bytes());
  }
  file.CutBehindEnd();
  return absl::OkStatus();
}

}  // namespace cairn::kv
