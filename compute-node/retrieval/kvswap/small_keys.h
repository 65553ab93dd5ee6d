// SmallKeys are the small keys of one layer in memory, one for each position that has left the
// window: what kvswap ranks its groups by ("KVSwap", sections 3.2 and 3.3).
//
// Memory:     shape().RowBytes() for a position, in blocks of kBlockRows.
// Threading:  one thread for one layer; Score may share its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/kernels/key_codes.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

// What Score works in: kept between calls, because to get it anew takes longer than to fill it.
struct ScoreScratch {
  std::vector<float> scores;
  std::vector<float> masses;
};

class SmallKeys {
 public:
  static constexpr std::int64_t kBlockRows = 1024;

  explicit SmallKeys(const KeyCodeShape& shape) : shape_(shape) {}

  std::int64_t count() const { return count_; }
  std::int64_t size_bytes() const { return std::ssize(blocks_) * BlockBytes(); }

  // Those from `count` on are forgotten; new ones up to `count` have the codes of nothing.
  void Resize(std::int64_t count);
  // REQUIRES: 0 <= position < count().
  void Put(std::int64_t position, std::span<const std::uint8_t> codes);
  // The codes of some positions as bytes, and the reverse. REQUIRES: they are there; as many bytes.
  std::string Row(std::int64_t first, std::int64_t row_count) const;
  void PutRow(std::int64_t first, std::int64_t row_count, std::string_view row);

  // The attention mass of each position: for every query the softmax over all of them, summed over
  // the queries. It lives in the scratch until the next call. What it gives does not depend on how
  // many threads there are.
  std::span<const float> Score(std::span<const CodedQuery> queries, float scale, ThreadPool* pool,
                               ScoreScratch& scratch) const;

 private:
  std::int64_t BlockBytes() const { return kBlockRows / kCodePanelRows * shape_.PanelBytes(); }
  std::byte* PanelOf(std::int64_t position) const;
  // Of consecutive queries, in order.
  void AddMasses(std::span<const CodedQuery> queries, float scale, std::span<float> scores,
                 std::span<float> masses) const;

  KeyCodeShape shape_;
  std::int64_t count_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace cairn::compute
