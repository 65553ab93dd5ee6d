#include "compute-node/model/forward/weights_packer.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/io/checksum.h"
#include "common/log/log.h"
#include "compute-node/model/forward/finite_check.h"

namespace cairn::compute {
namespace {

// Of packed weights at a time.
constexpr std::int64_t kPackBytes = 8 << 20;

}  // namespace

void PackTask::PackOne(std::int64_t panel, std::byte* to) const {
  const std::byte* rows = tensor->data.data() + first_row * tensor->row_bytes();
  const std::int64_t columns = tensor->row_length();
  if (!sums) return PackPanel(type, rows, row_count, columns, panel, to);
  PackQuerySums(type, rows, *sums, packed_rows(), columns, panel, to);
}

std::int64_t PackedTotal(std::span<const PackTask> tasks) {
  std::int64_t total = 0;
  for (const PackTask& task : tasks) {
    total += task.packed_bytes();
  }
  return total;
}

// Packs all matrices one behind the other, some panels at a time: room(size_bytes) says where
// the next ones go, packed(size_bytes) takes them.
template <typename Room, typename Packed>
absl::Status WeightsPacker::PackAll(const Room& room, const Packed& packed) {
  CAIRN_RETURN_IF_ERROR(CheckUnpacked());
  std::int64_t done = 0;
  for (const PackTask& task : tasks_) {
    const std::int64_t panel_bytes = PanelBytes(task.packed_type(), task.tensor->row_length());
    const std::int64_t panel_count = PackedMatrix{.row_count = task.packed_rows()}.panel_count();
    const std::int64_t panels_at_once = std::max<std::int64_t>(1, kPackBytes / panel_bytes);
    FiniteCheck check(*task.tensor, task.type);
    for (std::int64_t first = 0; first < panel_count; first += panels_at_once) {
      const std::int64_t count = std::min(panels_at_once, panel_count - first);
      std::byte* to = room(count * panel_bytes);
      pool_.ParallelFor(count, [&](std::int64_t index) {
        const std::int64_t panel = first + index;
        task.PackOne(panel, to + index * panel_bytes);
        if (task.sums) return;  // of rows that were checked when they were packed
        // Now, because the rows are in the caches.
        const std::int64_t row = panel * kPanelRows;
        check.CheckRows(task.first_row + row, std::min(kPanelRows, task.row_count - row));
      });
      CAIRN_RETURN_IF_ERROR(check.status());
      CAIRN_RETURN_IF_ERROR(packed(count * panel_bytes));
    }
    file_.DropFromMemory(task.tensor->data);
    done += task.row_count * task.tensor->row_bytes();
    if (progress_) progress_(done, SourceTotal());
  }
  return absl::OkStatus();
}

absl::StatusOr<AlignedMapping> WeightsPacker::Load(const PackedCache& cache) {
  if (!cache.directory.empty() && PackedTotal(tasks_) >= cache.size_bytes_min) {
    absl::StatusOr<AlignedMapping> cached = MapCached(cache);
    if (cached.ok() || absl::IsFailedPrecondition(cached.status())) return cached;
    // Of a model that is itself wrong the same is found again below.
    LogWarning("packing weights in memory, at every start: {}", Message(cached.status()));
  }
  CAIRN_ASSIGN_OR_RETURN(AlignedMapping memory, AlignedMapping::Memory(PackedTotal(tasks_)));
  std::byte* to = memory.data();
  CAIRN_RETURN_IF_ERROR(PackAll([&](std::int64_t) { return to; },
                                [&](std::int64_t size_bytes) {
                                  to += size_bytes;
                                  return absl::OkStatus();
                                }));
  return memory;
}

absl::StatusOr<AlignedMapping> WeightsPacker::MapCached(const PackedCache& cache) {
  const PackedKey key{cache.model_digest, PlanCrc(), PackedTotal(tasks_)};
  const std::string path = PackedFilePath(cache.directory, key.model_digest);
  absl::StatusOr<AlignedMapping> mapped = OpenPackedFile(path, key, pool_);
  if (mapped.ok()) {
    if (progress_) progress_(SourceTotal(), SourceTotal());
    return mapped;
  }
  if (mapped.status().code() != absl::StatusCode::kNotFound) {
    LogWarning("packing weights again: {}", Message(mapped.status()));
  }
  LogInfo("packing weights once for this model path={} bytes={}", path, key.size_bytes);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFileWriter> writer,
                         PackedFileWriter::Create(cache.directory, key));
  std::vector<std::byte> buffer;
  CAIRN_RETURN_IF_ERROR(PackAll(
      [&](std::int64_t size_bytes) {
        buffer.resize(static_cast<std::size_t>(size_bytes));
        return buffer.data();
      },
      [&](std::int64_t) { return writer->Append(buffer); }));
  // What is kept must be what the digest says.
  CAIRN_RETURN_IF_ERROR(file_.CheckUnchanged());
  CAIRN_RETURN_IF_ERROR(writer->Finish());
  return OpenPackedFile(path, key, pool_);
}

absl::Status WeightsPacker::CheckUnpacked() const {
  if (checked_ == nullptr) return absl::OkStatus();
  FiniteCheck check(*checked_, checked_type_);
  const std::int64_t row_count = checked_->row_count();
  constexpr std::int64_t kRowsAtOnce = 256;
  pool_.ParallelFor((row_count + kRowsAtOnce - 1) / kRowsAtOnce, [&](std::int64_t index) {
    const std::int64_t first = index * kRowsAtOnce;
    check.CheckRows(first, std::min(kRowsAtOnce, row_count - first));
  });
  file_.DropFromMemory(checked_->data);
  return check.status();
}

std::int64_t WeightsPacker::SourceTotal() const {
  std::int64_t total = 0;
  for (const PackTask& task : tasks_) total += task.row_count * task.tensor->row_bytes();
  return total;
}

// Of which matrices lie where in the packed weights.
std::uint32_t WeightsPacker::PlanCrc() const {
  std::string plan;
  for (const PackTask& task : tasks_) {
    plan += fmt::format("{} {} {} {} {} {} {}\n", task.tensor->name, static_cast<int>(task.type),
                        static_cast<int>(task.packed_type()), task.first_row, task.row_count,
                        task.tensor->row_length(), task.sums ? task.sums->group_size : 0);
  }
  return Crc32c(std::as_bytes(std::span(plan)), 0);
}

}  // namespace cairn::compute
