// Attention over KV entries that lie anywhere in memory, in blocks, by online softmax: the running
// maximum, sum and weighted values of each query row are carried from block to block (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018; FlashAttention uses the same
// recurrence).
//
// An entry is the K row then the V row of one token for one KV head, contiguous, in one KvFormat:
// KvEntryBytes(format, head_dim) bytes, no alignment needed.
//
// The result for a query row depends only on the row and on the sequence of blocks (their entries
// and lengths), bit for bit: not on where entries lie, on how many query rows are in a call, or on
// the thread that runs it. Whoever needs the same words again must cut the same blocks.
//
// Threading:  functions of their arguments only; different states may be worked on at the same
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kv/kv_format.h"

namespace cairn::compute {

inline constexpr int kAttentionBlockEntries = 32;
inline constexpr int kHeadDimMax = 512;

// State of one query row: floats [max, sum, acc[head_dim]]. Several rows' states are consecutive.
constexpr std::int64_t AttentionStateFloats(std::int64_t head_dim) { return 2 + head_dim; }

// Query rows that share a KV head: (token, head of the group) pairs in any order. Row r is at data
// + r * stride.
struct QueryRows {
  const float* data;
  std::int64_t row_count;
  std::int64_t stride;  // in floats
};

// Sets states of rows to "nothing attended yet". states.size() == row_count *
// AttentionStateFloats(head_dim).
void InitAttention(std::span<float> states, std::int64_t head_dim);

// A block of entries as the kernels use it: f32, keys by element. Written by LoadBlock and then
// read by any number of AttendBlock calls. Large, and mostly untouched: about as much of it as
// entries of 8 * head_dim bytes are.
struct KvBlock {
  std::int64_t entry_count;
  std::int64_t head_dim;
  alignas(64) float keys[kHeadDimMax * kAttentionBlockEntries];    // (element, entry)
  alignas(64) float values[kAttentionBlockEntries * kHeadDimMax];  // (entry, element)
};

// Converts at most kAttentionBlockEntries entries, and asks for the bytes of `next_entries`, the
// block after this one or nothing, to be brought near. REQUIRES: head_dim is a multiple of 8, at
// most kHeadDimMax.
void LoadBlock(std::span<const std::byte* const> entries,
               std::span<const std::byte* const> next_entries, KvFormat format,
               std::int64_t head_dim, KvBlock& block);

// Attends one block. `scale` multiplies the scores (1 / sqrt(head_dim)). `visible_counts` is empty
// (all entries are visible to every row) or says for each row how many of the leading entries it
// sees; 0 leaves that row's state untouched. What a row does not see has no influence on it,
// whatever it holds; a visible score that is not finite makes the row's sum NaN.
void AttendBlock(const KvBlock& block, float scale, const QueryRows& queries,
                 std::span<const std::int32_t> visible_counts, std::span<float> states);

// Entries that are means, as an index holds them: key e is centre + key_scales[e] * keys[e], value
// e is value_scales[e] * values[e], head_dim numbers each.
struct QuantizedMeans {
  std::span<const std::int8_t* const> keys;  // at most kAttentionBlockEntries
  std::span<const float> key_scales;
  std::span<const float> centre;  // its size is head_dim
  std::span<const std::int8_t* const> values;
  std::span<const float> value_scales;
};
void LoadMeans(const QuantizedMeans& means, KvBlock& block);

// Attends a block of which entry e stands for several ones that are all like it: `biases`, the
// logarithms of how many, block.entry_count of them, are added to the scaled scores. All are
// visible.
void AttendMeans(const KvBlock& block, std::span<const float> biases, float scale,
                 const QueryRows& queries, std::span<float> states);

// The scaled scores that AttendBlock makes weights of: row r's are at
// scores + r * kAttentionBlockEntries, as many, -inf for what it does not see or is not there.
void ScoreBlock(const KvBlock& block, float scale, const QueryRows& queries,
                std::span<const std::int32_t> visible_counts, std::span<float> scores);

// Adds to each of `weights` what its score is worth to the row, whose state has attended
// everything.
void AddWeights(std::span<const float> state, std::span<const float, kAttentionBlockEntries> scores,
                std::span<float> weights);

// Load and attend at once, for a block that only these rows attend.
void AttendBlock(std::span<const std::byte* const> entries, KvFormat format, std::int64_t head_dim,
                 float scale, const QueryRows& queries,
                 std::span<const std::int32_t> visible_counts, std::span<float> states);

// Writes acc / sum of row r to out + r * out_stride; zeros for a row that attended nothing.
void FinishAttention(std::span<const float> states, std::int64_t head_dim, float* out,
                     std::int64_t out_stride);

}  // namespace cairn::compute
