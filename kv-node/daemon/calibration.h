// The device profile of a store: measured once, kept as a row of family `config`.
//
// Threading:  one thread; not the engine's device: measuring opens one of its own.
// Blocking:   MeasureDeviceProfile reads for about a second and commits a row.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "kv-node/device/calibrate.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/io/page_io.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

// What was measured below this model (empty: none); nullopt when nothing was. A row that cannot be
// read counts as none, with a logged warning: it can be measured again.
absl::StatusOr<std::optional<DeviceProfile>> LoadDeviceProfile(MetaReader& reader,
                                                               std::string_view model);

// Measures the file's device, with options.model above it if there is one, and stores the profile
// durably. REQUIRES: nobody else reads or writes the file meanwhile.
//
// Errors:     FAILED_PRECONDITION the file was not written in full (a file system answers a read of
//             space that is only reserved without the device); those of OpenFileDevice, of
//             CalibrateDevice and of a commit.
absl::StatusOr<DeviceProfile> MeasureDeviceProfile(int fd, const FileDeviceOptions& options,
                                                   MetaStore& meta);

// Which holes a fetch may read through. In front of a piece of n bytes a hole of up to
// bandwidth * time(n) - n bytes costs no more than a request for the piece alone. Where a request
// has a fixed cost that is the same for all n; where a device is limited by requests a second it
// falls to 0 at the knee. So: pieces up to the largest size that has at least half of a page's gap,
// and the smallest gap of these sizes.
MergeLimits MergeLimitsOf(const DeviceProfile& profile);

// Where nothing was measured. A request costs as much as 14 to 31 KiB more of one on eMMC, UFS and
// NVMe alike (docs/benchmarks.md, "Length of reads").
inline constexpr MergeLimits kMergeLimitsUnmeasured = {.gap_bytes = std::int64_t{16} << 10,
                                                       .piece_bytes_max = std::int64_t{64} << 10};

// One line: "device=io_uring knee_bytes=65536 ...".
std::string ProfileSummary(const DeviceProfile& profile);

}  // namespace cairn::kv
