#include "kv-node/layout/free_map.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kWordBits = 64;

std::size_t Word(std::int64_t page) { return static_cast<std::size_t>(page / kWordBits); }
std::uint64_t Bit(std::int64_t page) { return std::uint64_t{1} << (page % kWordBits); }

}  // namespace

FreeMap::FreeMap(std::int64_t page_count, std::int64_t reserved_count)
    : page_count_(page_count),
      cursor_(reserved_count),
      words_(static_cast<std::size_t>((page_count + kWordBits - 1) / kWordBits)) {
  CAIRN_CHECK_LE(reserved_count, page_count);
  CAIRN_CHECK(MarkUsed(PageIndex(0), reserved_count));
}

bool FreeMap::IsUsed(PageIndex page) const {
  return (words_[Word(page.value())] & Bit(page.value())) != 0;
}

std::int64_t FreeMap::Search(std::int64_t from, std::int64_t to, std::int64_t count) const {
  const std::int64_t end = std::min(page_count_, to + count - 1);
  std::int64_t free = 0;  // pages up to here
  for (std::int64_t page = from; page < end;) {
    // The pages from here to the end of the word, and how many of them are alike.
    const std::uint64_t word = words_[Word(page)] >> (page % kWordBits);
    const bool used = (word & 1) != 0;
    const std::int64_t alike = std::min<std::int64_t>(
        used ? std::countr_one(word) : std::countr_zero(word), kWordBits - page % kWordBits);
    page += alike;
    free = used ? 0 : free + alike;
    if (free >= count) return page - free + count <= end ? page - free : -1;
  }
  return -1;
}

std::optional<PageIndex> FreeMap::TryAllocateBelow(std::int64_t end, std::int64_t count) {
  CAIRN_CHECK_GE(count, 1);
  CAIRN_CHECK_LE(end, page_count_);
  if (page_count_ - used_count_ < count) return std::nullopt;
  const std::int64_t last = end - count;  // where a range may begin
  std::int64_t first = Search(cursor_, last + 1, count);
  if (first < 0) first = Search(0, std::min(cursor_, last + 1), count);
  if (first < 0) return std::nullopt;
  Set(first, count, true);
  cursor_ = first + count;
  return PageIndex(first);
}

std::int64_t FreeMap::used_end() const {
  std::int64_t word = std::ssize(words_) - 1;
  while (word >= 0 && words_[static_cast<std::size_t>(word)] == 0) --word;
  if (word < 0) return 0;
  const auto width = std::bit_width(words_[static_cast<std::size_t>(word)]);
  return word * kWordBits + static_cast<std::int64_t>(width);
}

absl::StatusOr<PageIndex> FreeMap::Allocate(std::int64_t count) {
  if (const std::optional<PageIndex> first = TryAllocate(count)) return *first;
  return Full(count, "in one piece");
}

absl::Status FreeMap::Full(std::int64_t wanted_count, std::string_view how) const {
  constexpr double kPagesPerMebibyte = double{1 << 20} / kPageBytes;
  return ResourceExhausted(
      "flash is full: {:.1f} of {:.1f} MiB are in use, and there are no {} KiB {}; delete "
      "conversations that are not needed, or restart the KV node (cairn-compute-node, if it has "
      "the "
      "store itself) with a larger extent_file_bytes (now {})",
      static_cast<double>(used_count_) / kPagesPerMebibyte,
      static_cast<double>(page_count_) / kPagesPerMebibyte, wanted_count * kPageBytes / 1024, how,
      page_count_ * kPageBytes);
}

std::vector<FreeMap::Range> FreeMap::FreeRanges() const {
  std::vector<Range> ranges;
  std::int64_t free = 0;
  const auto end_at = [&](std::int64_t page) {
    if (free > 0) ranges.push_back({PageIndex(page - free), free});
    free = 0;
  };
  for (std::int64_t page = 0; page < page_count_; ++page) {
    if (words_[Word(page)] == ~std::uint64_t{0}) {
      end_at(page);
      page |= kWordBits - 1;
    } else if (IsUsed(PageIndex(page))) {
      end_at(page);
    } else {
      ++free;
    }
  }
  end_at(page_count_);
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const Range& a, const Range& b) { return a.count > b.count; });
  return ranges;
}

bool FreeMap::MarkUsed(PageIndex first, std::int64_t count) {
  if (first.value() < 0 || count < 0 || count > page_count_ - first.value()) return false;
  for (std::int64_t page = first.value(); page < first.value() + count; ++page) {
    if (IsUsed(PageIndex(page))) return false;
  }
  Set(first.value(), count, true);
  return true;
}

void FreeMap::Free(PageIndex first, std::int64_t count) {
  for (std::int64_t page = first.value(); page < first.value() + count; ++page) {
    CAIRN_CHECK(IsUsed(PageIndex(page)));
  }
  Set(first.value(), count, false);
  doubts_.erase(doubts_.lower_bound(first.value()), doubts_.lower_bound(first.value() + count));
}

void FreeMap::Doubt(PageIndex first, std::int64_t count) {
  for (std::int64_t page = first.value(); page < first.value() + count; ++page) {
    CAIRN_CHECK(IsUsed(PageIndex(page)));
    doubts_[page] = doubt_round_;
  }
}

std::int64_t FreeMap::SettleDoubts(std::int64_t round, const FreeMap& named) {
  std::int64_t freed_count = 0;
  std::erase_if(doubts_, [&](const auto& doubt) {
    const PageIndex page(doubt.first);
    if (doubt.second > round) return false;
    if (named.IsUsed(page)) return true;
    Set(page.value(), 1, false);
    ++freed_count;
    return true;
  });
  return freed_count;
}

void FreeMap::Set(std::int64_t first, std::int64_t count, bool used) {
  for (std::int64_t page = first; page < first + count; ++page) {
    if (used) {
      words_[Word(page)] |= Bit(page);
    } else {
      words_[Word(page)] &= ~Bit(page);
    }
  }
  used_count_ += used ? count : -count;
}

}  // namespace cairn::kv
