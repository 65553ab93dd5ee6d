#include "kv-node/engine/space/packed_map.h"

#include <algorithm>

#include "common/base/check.h"

namespace cairn::kv {

std::vector<PackedMap::Item> PackedMap::ItemsOf(const Block& block) {
  std::vector<Item> items;
  items.reserve(block.count + std::size_t{1});
  ForEachIn(block, [&](std::int64_t key, std::string_view value) {
    items.push_back({key, value});
  });
  return items;
}

PackedMap::Block PackedMap::MakeBlock(std::span<const Item> items) {
  ByteWriter out;
  std::int64_t last = items.front().key;
  for (const Item& item : items) {
    out.Varint(item.key - last);
    out.Bytes(item.value);
    last = item.key;
  }
  const std::string bytes = out.Take();
  // A copy has no room to grow, which is never used.
  return {items.front().key, last, std::string(bytes), static_cast<std::uint8_t>(items.size())};
}

std::size_t PackedMap::BlockOf(std::int64_t key) const {
  const auto after = std::upper_bound(
      blocks_.begin(), blocks_.end(), key,
      [](std::int64_t wanted, const Block& block) { return wanted < block.first_key; });
  return after == blocks_.begin() ? 0 : static_cast<std::size_t>(after - blocks_.begin()) - 1;
}

std::optional<std::string_view> PackedMap::Find(std::int64_t key) const {
  if (blocks_.empty()) return std::nullopt;
  const Block& block = blocks_[BlockOf(key)];
  ByteReader in(block.items);
  std::int64_t at = block.first_key;
  while (!in.at_end()) {
    at += in.Varint();
    const std::string_view value = in.Bytes(in.remaining());
    if (at == key) return value;
    if (at > key) break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> PackedMap::KeyBelow(std::int64_t key) const {
  if (blocks_.empty() || blocks_.front().first_key >= key) return std::nullopt;
  std::int64_t below = 0;
  ForEachIn(blocks_[BlockOf(key - 1)], [&](std::int64_t at, std::string_view) {
    if (at < key) below = at;
  });
  return below;
}

void PackedMap::Append(std::int64_t key, std::string_view value) {
  ++count_;
  if (blocks_.empty() || blocks_.back().count == kBlockItemsMax) {
    const Item item{key, value};
    blocks_.push_back(MakeBlock({&item, 1}));
    return;
  }
  Block& block = blocks_.back();
  ByteWriter out;
  out.Varint(key - block.last_key);
  out.Bytes(value);
  // Once for all that come, if they are like the first.
  if (block.count == 1) block.items.reserve(kBlockItemsMax * block.items.size());
  block.items += out.Take();
  block.last_key = key;
  if (++block.count == kBlockItemsMax) block.items.shrink_to_fit();
}

void PackedMap::Put(std::int64_t key, std::string_view value) {
  CAIRN_CHECK_GE(key, 0);
  if (blocks_.empty() || key > blocks_.back().last_key) return Append(key, value);
  const std::size_t index = BlockOf(key);
  std::vector<Item> items = ItemsOf(blocks_[index]);
  const auto at =
      std::lower_bound(items.begin(), items.end(), key,
                       [](const Item& item, std::int64_t wanted) { return item.key < wanted; });
  if (at != items.end() && at->key == key) {
    at->value = value;
  } else {
    items.insert(at, {key, value});
    ++count_;
  }
  const std::span<const Item> all(items);
  if (all.size() <= kBlockItemsMax) {
    blocks_[index] = MakeBlock(all);
    return;
  }
  const std::size_t keep = all.size() / 2;
  Block rest = MakeBlock(all.subspan(keep));
  blocks_[index] = MakeBlock(all.first(keep));
  blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(rest));
}

bool PackedMap::Erase(std::int64_t key) {
  if (blocks_.empty()) return false;
  const std::size_t index = BlockOf(key);
  std::vector<Item> items = ItemsOf(blocks_[index]);
  if (std::erase_if(items, [key](const Item& item) { return item.key == key; }) == 0) return false;
  --count_;
  if (items.empty()) {
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    return true;
  }
  blocks_[index] = MakeBlock(items);
  // With the one behind it, or the one before.
  if (index + 1 == blocks_.size() || !Join(index)) {
    if (index > 0) Join(index - 1);
  }
  return true;
}

bool PackedMap::Join(std::size_t first) {
  if (blocks_[first].count + blocks_[first + 1].count > kBlockItemsMax / 2) return false;
  std::vector<Item> items = ItemsOf(blocks_[first]);
  for (const Item& item : ItemsOf(blocks_[first + 1])) items.push_back(item);
  blocks_[first] = MakeBlock(items);
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  if (blocks_.size() < blocks_.capacity() / 4) blocks_.shrink_to_fit();
  return true;
}

std::int64_t PackedMap::memory_bytes() const {
  constexpr std::int64_t kAllocationBytes = 16;  // what the allocator adds to a block
  auto bytes = static_cast<std::int64_t>(blocks_.capacity() * sizeof(Block));
  for (const Block& block : blocks_) {
    bytes += static_cast<std::int64_t>(block.items.capacity()) + kAllocationBytes;
  }
  return bytes;
}

}  // namespace cairn::kv
