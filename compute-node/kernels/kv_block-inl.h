// Entries of every format become a KvBlock; compiled once for each instruction set, with
// attention-inl.h.
//
// Keys are transposed in their stored form, whose elements are small, and converted afterwards:
// shuffles are what limits this.
#if defined(CAIRN_KV_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KV_BLOCK_INL_H_
#undef CAIRN_KV_BLOCK_INL_H_
#else
#define CAIRN_KV_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include <hwy/highway.h>

#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/convert.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using AttentionFloats = hn::CappedTag<float, 16>;
using AttentionVec = hn::Vec<AttentionFloats>;

// `from` holds as many f16 numbers as d has lanes.
template <class D>
HWY_INLINE hn::Vec<D> LoadHalves(D d, const void* from) {
  if constexpr (HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SCALAR) {
    // Without instructions for it, Highway knows no infinities.
    HWY_ALIGN float converted[hn::MaxLanes(D())];
    LoadF16Row(static_cast<const std::byte*>(from), {converted, hn::Lanes(d)});
    return hn::Load(d, converted);
  } else {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, static_cast<const hwy::float16_t*>(from)));
  }
}

// The formats: how a column of keys (of one element, for entries from the e-th on) and a piece of a
// row of values (of entry e, from element i on) become floats.
struct F32Entries {
  using Key = std::uint32_t;
  static constexpr std::int64_t kKeyOffset = 0;  // of the first key in its row
  template <class D>
  HWY_INLINE hn::Vec<D> Keys(D d, const Key* column, std::size_t /*e*/) const {
    return hn::LoadU(d, reinterpret_cast<const float*>(column));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Values(D d, const std::byte* row, std::size_t /*e*/, std::int64_t i) const {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + i);
  }
};

struct F16Entries {
  using Key = std::uint16_t;
  static constexpr std::int64_t kKeyOffset = 0;
  template <class D>
  HWY_INLINE hn::Vec<D> Keys(D d, const Key* column, std::size_t /*e*/) const {
    return LoadHalves(d, column);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Values(D d, const std::byte* row, std::size_t /*e*/, std::int64_t i) const {
    return LoadHalves(d, row + i * 2);
  }
};

// The f16 numbers at `offset` of all entries, converted together.
HWY_INLINE void LoadScales(const std::byte* const* entries, std::int64_t offset,
                           float* HWY_RESTRICT scales) {
  const AttentionFloats df;
  HWY_ALIGN std::uint16_t halves[kAttentionBlockEntries];
  for (std::size_t e = 0; e < kAttentionBlockEntries; ++e) {
    std::memcpy(&halves[e], entries[e] + offset, sizeof(halves[e]));
  }
  for (std::size_t e = 0; e < kAttentionBlockEntries; e += hn::Lanes(df)) {
    hn::Store(LoadHalves(df, halves + e), df, scales + e);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> LoadSignedBytes(D d, const void* from) {
  const hn::Rebind<std::int32_t, D> d32;
  const hn::Rebind<std::int8_t, D> d8;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, static_cast<const std::int8_t*>(from))));
}

// Keys of 8 bits behind `kHeaderBytes`, with a scale for each entry.
template <std::int64_t kHeaderBytes>
struct ByteKeys {
  using Key = std::uint8_t;
  static constexpr std::int64_t kKeyOffset = kHeaderBytes;
  template <class D>
  HWY_INLINE hn::Vec<D> Keys(D d, const Key* column, std::size_t e) const {
    return hn::Mul(LoadSignedBytes(d, column), hn::LoadU(d, key_scales + e));
  }
  HWY_ALIGN float key_scales[kAttentionBlockEntries];
};

template <std::int64_t kHeaderBytes>
struct ByteEntries : ByteKeys<kHeaderBytes> {
  template <class D>
  HWY_INLINE hn::Vec<D> Values(D d, const std::byte* row, std::size_t e, std::int64_t i) const {
    return hn::Mul(LoadSignedBytes(d, row + kHeaderBytes + i), hn::Set(d, value_scales[e]));
  }
  HWY_ALIGN float value_scales[kAttentionBlockEntries];
};

// Each row begins with its scale.
struct Q8Entries : ByteEntries<2> {
  Q8Entries(const std::byte* const* entries, std::int64_t value_offset) {
    LoadScales(entries, 0, key_scales);
    LoadScales(entries, value_offset, value_scales);
  }
};

// Values of 4 bits: a group's scale and minimum stand together in front of the row.
struct Q4Entries : ByteKeys<2> {
  Q4Entries(const std::byte* const* entries, std::int64_t head_dim)
      : header_bytes(KvValueBytes(KvFormat::kQ4, head_dim) - head_dim / 2) {
    LoadScales(entries, 0, key_scales);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Values(D d, const std::byte* row, std::size_t /*e*/, std::int64_t i) const {
    const hn::Rebind<std::int32_t, D> d32;
    const hn::Rebind<std::uint8_t, D> d8;
    const hn::Half<hn::Rebind<std::uint16_t, D>> d16;
    const hn::Rebind<std::uint8_t, decltype(d16)> d_pairs;
    const auto* pairs = reinterpret_cast<const std::uint8_t*>(row) + header_bytes + i / 2;
    // A byte becomes two: its low half, then its high one.
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d_pairs, pairs));
    const auto apart = hn::And(hn::Or(wide, hn::ShiftLeft<4>(wide)), hn::Set(d16, 0x0f0f));
    const auto numbers = hn::ConvertTo(d, hn::PromoteTo(d32, hn::BitCast(d8, apart)));
    const std::byte* header = row + i / kKvGroupNumbers * 4;
    // Two groups' headers, or what follows the last one: a row has 8 bytes at least.
    const hn::CappedTag<float, 4> d4;
    HWY_ALIGN float scale_and_minimum[4];
    hn::Store(LoadHalves(d4, header), d4, scale_and_minimum);
    return hn::MulAdd(numbers, hn::Set(d, scale_and_minimum[0]), hn::Set(d, scale_and_minimum[1]));
  }
  std::int64_t header_bytes;
};

// Asks for the bytes of the entries that come next, a few lines at a time between the steps of a
// conversion, so that memory is busy while this block is computed with.
class NextEntries {
 public:
  NextEntries(std::span<const std::byte* const> entries, std::int64_t entry_bytes,
              std::int64_t step_count)
      : entries_(entries),
        entry_bytes_(entry_bytes),
        step_lines_(std::ssize(entries) * (entry_bytes / kLineBytes + 1) / step_count + 1) {}

  HWY_INLINE void Step() {
    for (std::int64_t i = 0; i < step_lines_ && at_ < entries_.size(); ++i) {
      __builtin_prefetch(entries_[at_] + offset_, 0, 2);
      offset_ += kLineBytes;
      if (offset_ >= entry_bytes_) {
        offset_ = 0;
        ++at_;
      }
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = 64;

  const std::span<const std::byte* const> entries_;
  const std::int64_t entry_bytes_;
  const std::int64_t step_lines_;
  std::size_t at_ = 0;
  std::int64_t offset_ = 0;
};

// The vector whose 128-bit blocks lie at offset in entries[0], entries[step], ...
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const std::byte* const* entries, std::size_t step,
                                 std::int64_t offset) {
  constexpr std::size_t kBlockLanes = 16 / sizeof(hn::TFromD<D>);
  if constexpr (hn::MaxLanes(D()) <= kBlockLanes) {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(entries[0] + offset));
  } else {
    const hn::Half<D> half;
    constexpr std::size_t kHalfBlocks = hn::MaxLanes(D()) / kBlockLanes / 2;
    return hn::Combine(d, LoadBlocks(half, entries + kHalfBlocks * step, step, offset),
                       LoadBlocks(half, entries, step, offset));
  }
}

// Transposes the square that the i-th blocks of `kSize` vectors are, for each i: every stage
// interleaves the first half of the vectors with the second.
template <class D, std::size_t kSize>
HWY_INLINE void TransposeBlocks(D d, hn::Vec<D> (&v)[kSize]) {
  for (std::size_t stage = 1; stage < kSize; stage *= 2) {
    hn::Vec<D> mixed[kSize];
    HWY_UNROLL(8)
    for (std::size_t j = 0; j < kSize / 2; ++j) {
      mixed[2 * j] = hn::InterleaveLower(d, v[j], v[j + kSize / 2]);
      mixed[2 * j + 1] = hn::InterleaveUpper(d, v[j], v[j + kSize / 2]);
    }
    HWY_UNROLL(16)
    for (std::size_t j = 0; j < kSize; ++j) {
      v[j] = mixed[j];
    }
  }
}

// Key rows of kAttentionBlockEntries entries to columns.
template <class Format>
HWY_INLINE void LoadKeys(const Format& format, const std::byte* const* entries, NextEntries& next,
                         KvBlock& block) {
  using Key = typename Format::Key;
  const hn::CappedTag<Key, std::min<std::size_t>(kAttentionBlockEntries, 64 / sizeof(Key))> d;
  using D = decltype(d);
  constexpr std::size_t kSize = 16 / sizeof(Key);
  const AttentionFloats df;
  for (std::size_t first = 0; first < kAttentionBlockEntries; first += hn::Lanes(d)) {
    for (std::int64_t i = 0; i < block.head_dim; i += kSize) {
      next.Step();
      hn::Vec<D> v[kSize];
      HWY_UNROLL(16)
      for (std::size_t j = 0; j < kSize; ++j) {
        v[j] = LoadBlocks(d, entries + first + j, kSize,
                          Format::kKeyOffset + i * static_cast<std::int64_t>(sizeof(Key)));
      }
      TransposeBlocks(d, v);
      HWY_ALIGN Key columns[kSize][hn::MaxLanes(D())];
      HWY_UNROLL(16)
      for (std::size_t j = 0; j < kSize; ++j) {
        hn::Store(v[j], d, columns[j]);
      }
      const auto count = std::min<std::int64_t>(kSize, block.head_dim - i);
      float* HWY_RESTRICT to = block.keys + i * kAttentionBlockEntries + first;
      for (std::int64_t j = 0; j < count; ++j) {
        for (std::size_t e = 0; e < hn::Lanes(d); e += hn::Lanes(df)) {
          hn::Store(format.Keys(df, columns[j] + e, first + e), df, to + e);
        }
        to += kAttentionBlockEntries;
      }
    }
  }
}

template <class Format>
HWY_INLINE void LoadValues(const Format& format, std::span<const std::byte* const> entries,
                           std::int64_t value_offset, NextEntries& next, KvBlock& block) {
  const AttentionFloats df;
  const hn::CappedTag<float, 8> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  float* HWY_RESTRICT to = block.values;
  for (std::size_t e = 0; e < entries.size(); ++e) {
    const std::byte* row = entries[e] + value_offset;
    next.Step();
    std::int64_t i = 0;
    for (; i + lanes <= block.head_dim; i += lanes) {
      hn::StoreU(format.Values(df, row, e, i), df, to + i);
    }
    // An odd multiple of 8, and vectors of 16.
    if (i < block.head_dim) hn::StoreU(format.Values(d8, row, e, i), d8, to + i);
    to += block.head_dim;
  }
}

void LoadBlockEntries(std::span<const std::byte* const> entries,
                      std::span<const std::byte* const> next_entries, KvFormat format,
                      KvBlock& block) {
  // Columns without an entry repeat the last one: their scores are computed and not used.
  const std::byte* padded[kAttentionBlockEntries];
  for (std::size_t e = 0; e < kAttentionBlockEntries; ++e) {
    padded[e] = entries[std::min(e, entries.size() - 1)];
  }
  const std::int64_t value_offset = KvKeyBytes(format, block.head_dim);
  NextEntries next(next_entries, KvEntryBytes(format, block.head_dim),
                   kAttentionBlockEntries + block.head_dim / 8);
  const auto load = [&](const auto& stored) {
    LoadKeys(stored, padded, next, block);
    LoadValues(stored, entries, value_offset, next, block);
  };
  switch (format) {
    case KvFormat::kF32:
      return load(F32Entries());
    case KvFormat::kF16:
      return load(F16Entries());
    case KvFormat::kQ8:
      return load(Q8Entries(padded, value_offset));
    case KvFormat::kQ4:
      return load(Q4Entries(padded, block.head_dim));
  }
}

void LoadMeanEntries(const QuantizedMeans& means, KvBlock& block) {
  // Keys are read 16 numbers at a time.
  constexpr std::int64_t kReadNumbers = 16;
  std::byte copies[kAttentionBlockEntries][kHeadDimMax + kReadNumbers];
  const std::byte* keys[kAttentionBlockEntries];
  const std::byte* values[kAttentionBlockEntries];
  const std::size_t count = means.keys.size();
  for (std::size_t e = 0; e < kAttentionBlockEntries; ++e) {
    const std::size_t from = std::min(e, count - 1);
    keys[e] = reinterpret_cast<const std::byte*>(means.keys[from]);
    values[e] = reinterpret_cast<const std::byte*>(means.values[from]);
    if (block.head_dim % kReadNumbers != 0) {
      keys[e] = static_cast<const std::byte*>(
          std::memcpy(copies[e], keys[e], static_cast<std::size_t>(block.head_dim)));
    }
  }
  ByteEntries<0> stored{};  // the scales stand elsewhere
  std::copy(means.key_scales.begin(), means.key_scales.end(), stored.key_scales);
  std::copy(means.value_scales.begin(), means.value_scales.end(), stored.value_scales);
  NextEntries next({}, 0, 1);
  LoadKeys(stored, keys, next, block);
  LoadValues(stored, {values, count}, 0, next, block);
  const AttentionFloats df;
  float* HWY_RESTRICT column = block.keys;
  for (const float centre : means.centre) {
    for (std::int64_t e = 0; e < kAttentionBlockEntries;
         e += static_cast<std::int64_t>(hn::Lanes(df))) {
      hn::Store(hn::Add(hn::Load(df, column + e), hn::Set(df, centre)), df, column + e);
    }
    column += kAttentionBlockEntries;
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
