// Trace: the keys and queries of one run of a model, for replaying what a policy or the store would
// have done, without the model. docs/trace-format.md has the bytes of a file.
//
// Units:      keys and queries are rows of head_dim f16 values, as their bits; positions count
//             tokens from 0.
// Threading:  a value; pure functions.
// Ownership:  everything is held in memory, at most kTraceBytesMax as a file.
// Errors:     INVALID_ARGUMENT a trace that is no trace (what is wrong with it); DATA_LOSS a file
//             whose checksum does not fit; FAILED_PRECONDITION another format version; those of
//             ErrnoStatus for files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace cairn {

inline constexpr std::int32_t kTraceVersion = 1;
inline constexpr std::int64_t kTraceBytesMax = std::int64_t{1} << 30;
inline constexpr std::int64_t kTraceTokensMax = std::int64_t{1} << 20;
inline constexpr std::int64_t kTraceOriginBytesMax = 4096;

struct Trace {
  // Of the model.
  std::int32_t layer_count = 0;
  std::int32_t kv_head_count = 0;
  std::int32_t group_size = 0;  // query heads that share a KV head
  std::int32_t head_dim = 0;
  // What of it was recorded: ascending.
  std::vector<std::int32_t> layers;
  std::vector<std::int32_t> kv_heads;
  std::int64_t token_count = 0;
  // The first tokens, which were there before the first decoded one.
  std::int64_t prompt_count = 0;
  // Positions whose queries were recorded: ascending.
  std::vector<std::int32_t> steps;
  // For people: where the run came from.
  std::string origin;
  std::vector<std::uint16_t> keys;     // (recorded layer, recorded head, token, dimension), rotated
  std::vector<std::uint16_t> queries;  // (step, recorded layer, recorded head, of the group, dim.)

  // Number of values that keys and queries must have.
  std::int64_t key_value_count() const;
  std::int64_t query_value_count() const;
  // Rows; indices count what was recorded, not what the model has.
  std::span<const std::uint16_t> Key(std::int64_t layer, std::int64_t head,
                                     std::int64_t token) const;
  // group_size rows, one behind the other.
  std::span<const std::uint16_t> Queries(std::int64_t step, std::int64_t layer,
                                         std::int64_t head) const;
  // Whether all fields are in range and fit each other.
  absl::Status Validate() const;
  friend bool operator==(const Trace&, const Trace&) = default;
};

// The bytes of a file. REQUIRES: trace.Validate() is OK.
std::string EncodeTrace(const Trace& trace);
// Nothing is allocated for a count before it is known that the bytes for it are there.
absl::StatusOr<Trace> DecodeTrace(std::string_view bytes);

absl::Status WriteTraceFile(const std::string& path, const Trace& trace);
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

}  // namespace cairn
