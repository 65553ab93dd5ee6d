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
    : layout_(layout), memory_(memory), entries_(ClusterRowCount(layout)) {}

void HeldEntries::Add(std::int32_t layer, const HeldEntry& held, std::string bytes) {
  CAIRN_CHECK_EQ(std::ssize(bytes), layout_.EntryBytes(held.cluster.head));
  std::vector<Entry>& entries = entries_[ClusterRow(layout_, layer, held.cluster.head)];
  const auto at = std::lower_bound(entries.begin(), entries.end(), held.position, IsBefore);
  CAIRN_CHECK(at == entries.end() || at->position != held.position);
  memory_.Add(std::ssize(bytes));
  entries.insert(at, {held.cluster.cluster_id, held.position, std::move(bytes)});
}

const HeldEntries::Entry* HeldEntries::Find(std::int32_t layer, std::int32_t head,
                                            std::int64_t position) const {
  const std::vector<Entry>& entries = Of(layer, head);
  const auto at = std::lower_bound(entries.begin(), entries.end(), position, IsBefore);
  return at == entries.end() || at->position != position ? nullptr : &*at;
}

void HeldEntries::Remove(std::int32_t layer, std::int32_t head, const Positions& positions) {
  const std::size_t removed =
      std::erase_if(entries_[ClusterRow(layout_, layer, head)],
                    [&](const Entry& entry) { return positions.Contains(entry.position); });
  CAIRN_CHECK_EQ(static_cast<std::int64_t>(removed), positions.count());
  memory_.Remove(positions.count() * layout_.EntryBytes(head));
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
    for (const Entry& entry : entries) memory_.Remove(std::ssize(entry.bytes));
    entries.clear();
  }
}

}  // namespace cairn::compute
