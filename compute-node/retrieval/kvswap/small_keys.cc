#include "compute-node/retrieval/kvswap/small_keys.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// Queries are scored in so many parts at the same time, whatever threads there are: sums of floats
// depend on their order.
constexpr std::int64_t kPartsMax = 4;
// Of a part, scored by one reading of the codes.
constexpr std::int64_t kQueriesAtOnce = 4;

}  // namespace

void SmallKeys::Resize(std::int64_t count) {
  CAIRN_CHECK(count >= 0);
  const std::size_t block_count = static_cast<std::size_t>((count + kBlockRows - 1) / kBlockRows);
  if (block_count < blocks_.size()) blocks_.resize(block_count);
  while (blocks_.size() < block_count) {
    blocks_.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(BlockBytes())));
  }
  count_ = count;
}

std::byte* SmallKeys::PanelOf(std::int64_t position) const {
  CAIRN_CHECK(position >= 0 && position < count_);
  return blocks_[static_cast<std::size_t>(position / kBlockRows)].get() +
         position % kBlockRows / kCodePanelRows * shape_.PanelBytes();
}

void SmallKeys::Put(std::int64_t position, std::span<const std::uint8_t> codes) {
  PutKeyCodes(shape_, codes, position % kCodePanelRows, PanelOf(position));
}

std::string SmallKeys::Row(std::int64_t first, std::int64_t row_count) const {
  std::string row(static_cast<std::size_t>(row_count * shape_.RowBytes()), '\0');
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(shape_.axis_count()));
  std::int64_t bit = 0;
  for (std::int64_t at = first; at < first + row_count; ++at) {
    GetKeyCodes(shape_, PanelOf(at), at % kCodePanelRows, codes);
    for (std::size_t axis = 0; axis < codes.size(); ++axis) {
      const int bits = shape_.BitsOf(static_cast<std::int64_t>(axis));
      for (int i = 0; i < bits; ++i, ++bit) {
        const int is_set = codes[axis] >> i & 1;
        char& byte = row[static_cast<std::size_t>(bit / 8)];
        byte = static_cast<char>(byte | is_set << bit % 8);
      }
    }
  }
  return row;
}

void SmallKeys::PutRow(std::int64_t first, std::int64_t row_count, std::string_view row) {
  CAIRN_CHECK(std::ssize(row) >= row_count * shape_.RowBytes());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(shape_.axis_count()));
  std::int64_t bit = 0;
  for (std::int64_t at = first; at < first + row_count; ++at) {
    for (std::size_t axis = 0; axis < codes.size(); ++axis) {
      codes[axis] = 0;
      const int bits = shape_.BitsOf(static_cast<std::int64_t>(axis));
      for (int i = 0; i < bits; ++i, ++bit) {
        const unsigned byte = static_cast<std::uint8_t>(row[static_cast<std::size_t>(bit / 8)]);
        codes[axis] = static_cast<std::uint8_t>(codes[axis] | (byte >> bit % 8 & 1U) << i);
      }
    }
    Put(at, codes);
  }
}

void SmallKeys::AddMasses(std::span<const CodedQuery> queries, float scale, std::span<float> scores,
                          std::span<float> masses) const {
  const std::size_t row_floats = static_cast<std::size_t>(size_bytes() / shape_.RowBytes());
  for (std::size_t first = 0; first < queries.size(); first += kQueriesAtOnce) {
    const std::span<const CodedQuery> some =
        queries.subspan(first, std::min<std::size_t>(kQueriesAtOnce, queries.size() - first));
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      float* rows[kQueriesAtOnce];
      for (std::size_t q = 0; q < some.size(); ++q) {
        rows[q] = scores.data() + q * row_floats + block * kBlockRows;
      }
      ScoreKeyCodes(shape_, some, blocks_[block].get(), kBlockRows / kCodePanelRows,
                    std::span(rows, some.size()));
    }
    for (std::size_t q = 0; q < some.size(); ++q) {
      AddSoftmaxOf(scores.subspan(q * row_floats, masses.size()), scale, masses);
    }
  }
}

std::span<const float> SmallKeys::Score(std::span<const CodedQuery> queries, float scale,
                                        ThreadPool* pool, ScoreScratch& scratch) const {
  const std::int64_t query_count = std::ssize(queries);
  const std::int64_t part_count =
      std::clamp<std::int64_t>((query_count + kQueriesAtOnce - 1) / kQueriesAtOnce, 1, kPartsMax);
  const std::size_t count = static_cast<std::size_t>(count_);
  const std::size_t scores_of_part =
      static_cast<std::size_t>(size_bytes() / shape_.RowBytes() * kQueriesAtOnce);
  scratch.scores.resize(scores_of_part * static_cast<std::size_t>(part_count));
  scratch.masses.assign(count * static_cast<std::size_t>(part_count), 0.0F);
  const auto score = [&](std::int64_t part) {
    const std::size_t at = static_cast<std::size_t>(part);
    const std::size_t first = static_cast<std::size_t>(part * query_count / part_count);
    const std::size_t end = static_cast<std::size_t>((part + 1) * query_count / part_count);
    AddMasses(queries.subspan(first, end - first), scale,
              std::span(scratch.scores).subspan(at * scores_of_part, scores_of_part),
              std::span(scratch.masses).subspan(at * count, count));
  };
  if (pool != nullptr) {
    pool->ParallelFor(part_count, score);
  } else {
    for (std::int64_t part = 0; part < part_count; ++part) score(part);
  }
  const std::span<float> masses = std::span(scratch.masses).first(count);
  for (std::size_t part = 1; part < static_cast<std::size_t>(part_count); ++part) {
    for (std::size_t i = 0; i < count; ++i) masses[i] += scratch.masses[part * count + i];
  }
  return masses;
}

}  // namespace cairn::compute
