// What of a ClusterIndex rows hold, and how its codes leave memory and come back from them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/clustering/cluster_index.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kClusterCountMax = std::int64_t{1} << 28;

}  // namespace

std::int64_t ClusterIndex::row_bytes() const {
  const std::int64_t value_bytes =
      keeps_values_ ? static_cast<std::int64_t>(sizeof(float)) + dim_ : 0;
  return static_cast<std::int64_t>(sizeof(RowHead)) + dim_ + value_bytes;
}

std::string ClusterIndex::Row(std::size_t slot) const {
  const RowHead head{.scale = scales_[slot],
                     .variance = variances_[slot],
                     .flags = (flags_[slot] & static_cast<std::uint32_t>(kPinned | kSplit)) |
                              (transformed_ ? std::uint32_t{kTransformed} : 0U)};
  std::string row(static_cast<std::size_t>(row_bytes()), '\0');
  std::memcpy(row.data(), &head, sizeof(head));
  const std::size_t width = static_cast<std::size_t>(dim_);
  std::memcpy(row.data() + sizeof(head), codes(slot).data(), width);
  if (keeps_values_) {
    char* at = row.data() + sizeof(head) + width;
    std::memcpy(at, &value_scales_[slot], sizeof(float));
    std::memcpy(at + sizeof(float), value_codes(slot), width);
  }
  return row;
}

absl::Status ClusterIndex::AddRow(ClusterId id, std::int64_t count, bool stale,
                                  std::string_view row) {
  const bool fits = std::ssize(row) == row_bytes() && count >= 1 && count <= kPositionMax &&
                    (ids_.empty() || ids_.back() < id.value()) &&
                    std::ssize(ids_) < kClusterCountMax;
  RowHead head{};
  float value_scale = 0;
  const std::size_t value_at = sizeof(head) + static_cast<std::size_t>(dim_);
  if (fits) std::memcpy(&head, row.data(), sizeof(head));
  if (fits && keeps_values_) {
    std::memcpy(&value_scale, row.data() + value_at, sizeof(value_scale));
  }
  const bool makes_sense =
      fits && std::isfinite(head.scale) && head.scale >= 0 && std::isfinite(head.variance) &&
      head.variance >= 0 && std::isfinite(value_scale) && value_scale >= 0 &&
      (head.flags & ~static_cast<std::uint32_t>(kPinned | kSplit | kTransformed)) == 0;
  if (!makes_sense) {
    return InvalidArgument("index row of cluster {}: {} bytes for {} entries are no row", id,
                           row.size(), count);
  }
  const bool transformed = (head.flags & kTransformed) != 0;
  std::uint32_t flags = head.flags & static_cast<std::uint32_t>(kPinned | kSplit);
  if (stale) flags |= kStale;
  if (transformed != transformed_) flags |= kMissing;
  const std::size_t slot = AddSlot(id, count, head.variance, static_cast<std::uint8_t>(flags));
  scales_[slot] = head.scale;
  if (keeps_values_) value_scales_[slot] = value_scale;
  const std::size_t width = static_cast<std::size_t>(dim_);
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(row.data());
  const std::span<const std::int8_t> row_codes(bytes + sizeof(head), width);
  SetSketch(slot, row_codes);
  SetHalfSquare(slot, row_codes);
  if (!is_loaded_) return absl::OkStatus();
  std::copy(row_codes.begin(), row_codes.end(), codes_.data() + slot * width);
  if (keeps_values_) {
    std::copy_n(bytes + value_at + sizeof(float), width, value_codes_.data() + slot * width);
  }
  return absl::OkStatus();
}

std::vector<std::size_t> ClusterIndex::TakeChanged() {
  std::vector<std::size_t> changed;
  for (std::size_t slot = 0; slot < flags_.size(); ++slot) {
    if ((flags_[slot] & kChanged) == 0) continue;
    flags_[slot] &= static_cast<std::uint8_t>(~kChanged);
    if (alive(slot)) changed.push_back(slot);
  }
  return changed;
}

void ClusterIndex::Unload() {
  const std::size_t width = static_cast<std::size_t>(dim_);
  std::vector<std::size_t> kept;
  std::vector<std::int8_t> kept_codes;
  std::vector<std::int8_t> kept_values;
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (!alive(slot) || (flags_[slot] & kChanged) == 0) continue;
    kept.push_back(slot);
    kept_codes.insert(kept_codes.end(), codes(slot).begin(), codes(slot).end());
    if (keeps_values_) {
      kept_values.insert(kept_values.end(), value_codes(slot), value_codes(slot) + width);
    }
  }
  kept_slots_ = std::move(kept);
  codes_ = std::move(kept_codes);
  value_codes_ = std::move(kept_values);
  unknown_slots_.clear();
  is_loaded_ = false;
}

ClusterIndex::Loading ClusterIndex::StartLoad() {
  CAIRN_CHECK(!is_loaded_);
  const std::size_t width = static_cast<std::size_t>(dim_);
  Loading loading;
  const auto make_room = [&](std::vector<std::int8_t>& of_all,
                             const std::vector<std::int8_t>& of_kept) {
    of_all.reserve(ids_.capacity() * width);
    of_all.resize(ids_.size() * width, 0);
    for (std::size_t i = 0; i < kept_slots_.size(); ++i) {
      std::memcpy(of_all.data() + kept_slots_[i] * width, of_kept.data() + i * width, width);
    }
  };
  make_room(loading.codes, codes_);
  if (keeps_values_) make_room(loading.value_codes, value_codes_);
  loading.is_known.resize(ids_.size(), 0);
  for (const std::size_t slot : kept_slots_) loading.is_known[slot] = 1;
  return loading;
}

void ClusterIndex::TakeRecord(Loading& loading, const IndexRecord& record) const {
  const std::int64_t id = record.cluster.cluster_id.value();
  std::size_t& slot = loading.next_slot;
  if (slot == ids_.size() || ids_[slot] > id) {
    slot = static_cast<std::size_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
  }
  while (slot < ids_.size() && ids_[slot] < id) ++slot;
  const bool wanted = slot < ids_.size() && ids_[slot] == id && alive(slot) &&
                      !std::binary_search(kept_slots_.begin(), kept_slots_.end(), slot) &&
                      std::ssize(record.row) == row_bytes();
  if (!wanted) return;
  RowHead head{};
  std::memcpy(&head, record.row.data(), sizeof(head));
  const std::size_t width = static_cast<std::size_t>(dim_);
  const char* const row_codes = record.row.data() + sizeof(head);
  float value_scale = 0;
  if (keeps_values_) std::memcpy(&value_scale, row_codes + width, sizeof(value_scale));
  // A row from before others were made says something else of the cluster. Of a key that is not
  // finite, variances are no numbers.
  const auto is_same = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  const bool is_last = record.entry_count == counts_[slot] && is_same(head.scale, scales_[slot]) &&
                       is_same(head.variance, variances_[slot]) &&
                       (!keeps_values_ || is_same(value_scale, value_scales_[slot]));
  loading.is_known[slot] = is_last ? 1 : 0;
  if (!is_last) return;
  std::memcpy(loading.codes.data() + slot * width, row_codes, width);
  if (keeps_values_) {
    std::memcpy(loading.value_codes.data() + slot * width, row_codes + width + sizeof(value_scale),
                width);
  }
}

std::int64_t ClusterIndex::EndLoad(Loading loading) {
  codes_ = std::move(loading.codes);
  value_codes_ = std::move(loading.value_codes);
  kept_slots_ = std::vector<std::size_t>();
  is_loaded_ = true;
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (loading.is_known[slot] == 0 && alive(slot)) unknown_slots_.push_back(slot);
  }
  return std::ssize(unknown_slots_);
}

void ClusterIndex::MarkMissing() {
  for (const std::size_t slot : std::exchange(unknown_slots_, {})) {
    Flags marked = flags(slot);
    marked.missing = true;
    SetFlags(slot, marked);
  }
}

void ClusterIndex::MarkSplit(std::size_t slot) { flags_[slot] |= kSplit; }

std::size_t ClusterIndex::PlaceOf(std::size_t slot) const {
  if (is_loaded_) return slot;
  const auto at = std::lower_bound(kept_slots_.begin(), kept_slots_.end(), slot);
  CAIRN_CHECK(at != kept_slots_.end() && *at == slot);
  return static_cast<std::size_t>(at - kept_slots_.begin());
}

std::size_t ClusterIndex::MakePlace(std::size_t slot) {
  if (is_loaded_) return slot;
  const auto at = std::lower_bound(kept_slots_.begin(), kept_slots_.end(), slot);
  const std::ptrdiff_t place = at - kept_slots_.begin();
  if (at != kept_slots_.end() && *at == slot) return static_cast<std::size_t>(place);
  kept_slots_.insert(at, slot);
  const std::size_t width = static_cast<std::size_t>(dim_);
  codes_.insert(codes_.begin() + place * dim_, width, 0);
  if (keeps_values_) value_codes_.insert(value_codes_.begin() + place * dim_, width, 0);
  return static_cast<std::size_t>(place);
}

}  // namespace cairn::compute
