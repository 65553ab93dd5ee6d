// PackedMap: a sorted map from numbers to short byte strings that needs little more memory than the
// strings. Items lie behind one another in blocks; a change writes its block anew.
//
// Threading:  a value type; not synchronised.
// Limits:     a block has kBlockItemsMax items, which a look-up passes one by one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv-node/layout/byte_codec.h"

namespace cairn::kv {

class PackedMap {
 public:
  static constexpr std::size_t kBlockItemsMax = 16;

  // Valid until the next change.
  std::optional<std::string_view> Find(std::int64_t key) const;
  // REQUIRES: key >= 0. `value` may lie in the map itself.
  void Put(std::int64_t key, std::string_view value);
  // Returns whether it was there.
  bool Erase(std::int64_t key);
  // The largest key that is smaller than this one.
  std::optional<std::int64_t> KeyBelow(std::int64_t key) const;
  // Calls `fn` with every key and value, in ascending order. `fn` changes nothing here.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (const Block& block : blocks_) ForEachIn(block, fn);
  }

  // REQUIRES: not empty.
  std::int64_t last_key() const { return blocks_.back().last_key; }

  bool empty() const { return blocks_.empty(); }
  std::int64_t count() const { return count_; }
  std::int64_t memory_bytes() const;

 private:
  struct Block {
    std::int64_t first_key = 0;
    std::int64_t last_key = 0;
    std::string items;  // of each: its distance to the key before it, its value's size, its value
    std::uint8_t count = 0;
  };
  struct Item {
    std::int64_t key = 0;
    std::string_view value;
  };

  template <typename Fn>
  static void ForEachIn(const Block& block, Fn&& fn) {
    ByteReader in(block.items);
    std::int64_t key = block.first_key;
    while (!in.at_end()) {
      key += in.Varint();
      fn(key, in.Bytes(in.remaining()));
    }
  }
  static std::vector<Item> ItemsOf(const Block& block);
  static Block MakeBlock(std::span<const Item> items);
  // A key above all others: nothing is written anew.
  void Append(std::int64_t key, std::string_view value);
  // The block that holds the key if any does: the last that begins at or below it, else the first.
  // REQUIRES: not empty.
  std::size_t BlockOf(std::int64_t key) const;
  // Joins a block with the one behind it if together they are small. REQUIRES: there is one.
  bool Join(std::size_t first);

  std::vector<Block> blocks_;
  std::int64_t count_ = 0;
};

}  // namespace cairn::kv
