#include "compute-node/session/entries/held_entries.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

bool IsBefore(const HeldEntries::Entry& entry, std::int64_t position) {
  return entry.position < position;
}

}  // namespace

HeldEntries::HeldEntries(const EntryLayout& layout, KvMemory& memory)
    : head_count_(layout.head_count),
      entry_bytes_(layout.EntryBytes(0)),
      memory_(memory),
      entries_(static_cast<std::size_t>(std::int64_t{layout.layer_count} * layout.head_count)) {}

void HeldEntries::Add(std::int32_t layer, const HeldEntry& held, const std::byte* entry) {
  std::vector<Entry>& entries = entries_[Row(layer, held.cluster.head)];
  const auto at = std::lower_bound(entries.begin(), entries.end(), held.position, IsBefore);
  CAIRN_CHECK(at == entries.end() || at->position != held.position);
  std::string bytes(reinterpret_cast<const char*>(entry), static_cast<std::size_t>(entry_bytes_));
  entries.insert(at, {held.cluster.cluster_id, held.position, std::move(bytes)});
  memory_.Add(entry_bytes_);
}

const HeldEntries::Entry* HeldEntries::Find(std::int32_t layer, std::int32_t head,
                                            std::int64_t position) const {
  const std::vector<Entry>& entries = Of(layer, head);
  const auto at = std::lower_bound(entries.begin(), entries.end(), position, IsBefore);
  return at == entries.end() || at->position != position ? nullptr : &*at;
}

void HeldEntries::Remove(std::int32_t layer, std::int32_t head, const Positions& positions) {
  const std::size_t removed = std::erase_if(entries_[Row(layer, head)], [&](const Entry& entry) {
    return positions.Contains(entry.position);
  });
  CAIRN_CHECK_EQ(static_cast<std::int64_t>(removed), positions.count());
  memory_.Remove(positions.count() * entry_bytes_);
}

Positions HeldEntries::OfCluster(std::int32_t layer, const ClusterRef& cluster) const {
  Positions positions;
  for (const Entry& entry : Of(layer, cluster.head)) {
    if (entry.cluster_id == cluster.cluster_id) positions.Append(entry.position);
  }
  return positions;
}

void HeldEntries::Clear() {
  for (std::vector<Entry>& entries : entries_) {
    memory_.Remove(std::ssize(entries) * entry_bytes_);
    entries.clear();
  }
}

}  // namespace cairn::compute
