// KV entries in their stored form: what is written when a token is appended, and the plain reading
// of it, which the attention kernels' own is tested against. docs/on-disk-format.md, "Entries",
// has the bytes.
//
// What a format cannot hold becomes not a number, never a plausible one: in f16 numbers from 65520
// on are infinite; in q8 a row that has an infinity, a NaN or a number beyond +-8.3e6 is NaN
// throughout, and so is in q4 a group of values that has one or whose least number is below -65504.
// Everything else is off by at most half of a row's (group's) scale.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstddef>
#include <span>

#include "common/kv/kv_format.h"

namespace cairn::compute {

// Which rows of an entry a format cannot hold.
enum class KvMisfit { kNone, kKey, kValue };

// Writes KvEntryBytes(format, k.size()) bytes at `entry`, which need not be aligned, and answers
// what of it became not a number. REQUIRES: k and v have the same length.
KvMisfit StoreKvEntry(std::span<const float> k, std::span<const float> v, KvFormat format,
                      std::byte* entry);
// The reverse.
void LoadKvEntry(const std::byte* entry, KvFormat format, std::span<float> k, std::span<float> v);

// One row in q8: an f16 scale, then a signed byte for each number. 32 numbers are a block of Q8_0.
// Answers whether q8 can hold it.
bool StoreQ8Row(std::span<const float> row, std::byte* to);
void LoadQ8Row(const std::byte* from, std::span<float> row);

}  // namespace cairn::compute
