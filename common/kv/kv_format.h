// How KV entries are stored: sizes and names. The numbers, and the bytes that they stand for
// (docs/on-disk-format.md, "Entries"), are on disk and in the protocol: never change one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class KvFormat : std::int32_t {
  kF32 = 1,
  kF16 = 2,
  kQ8 = 3,  // keys and values of 8 bits
  kQ4 = 4,  // keys of 8 bits, values of 4
};

inline constexpr std::array kKvFormats = {KvFormat::kF32, KvFormat::kF16, KvFormat::kQ8,
                                          KvFormat::kQ4};

// Numbers of a 4-bit row that share a scale and a minimum.
inline constexpr std::int64_t kKvGroupNumbers = 32;

// One K row, of head_dim numbers.
constexpr std::int64_t KvKeyBytes(KvFormat format, std::int64_t head_dim) {
  switch (format) {
    case KvFormat::kF32:
      return 4 * head_dim;
    case KvFormat::kF16:
      return 2 * head_dim;
    case KvFormat::kQ8:
    case KvFormat::kQ4:
      break;
  }
  return 2 + head_dim;
}

// One V row.
constexpr std::int64_t KvValueBytes(KvFormat format, std::int64_t head_dim) {
  if (format != KvFormat::kQ4) return KvKeyBytes(format, head_dim);
  const std::int64_t group_count = (head_dim + kKvGroupNumbers - 1) / kKvGroupNumbers;
  return 4 * group_count + (head_dim + 1) / 2;
}

// One entry: the K row, then the V row, of one token in one layer for one KV head.
constexpr std::int64_t KvEntryBytes(KvFormat format, std::int64_t head_dim) {
  return KvKeyBytes(format, head_dim) + KvValueBytes(format, head_dim);
}

// As users write it.
constexpr std::string_view KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kF16:
      return "f16";
    case KvFormat::kQ8:
      return "q8";
    case KvFormat::kQ4:
      break;
  }
  return "q4";
}
inline constexpr std::string_view kKvFormatNames = "f32, f16, q8 or q4";

// nullopt for what is not a format's name.
constexpr std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  for (const KvFormat format : kKvFormats) {
    if (KvFormatName(format) == name) return format;
  }
  return std::nullopt;
}

// For numbers from outside: nullopt for one that no format has.
constexpr std::optional<KvFormat> KvFormatFromNumber(std::int64_t number) {
  for (const KvFormat format : kKvFormats) {
    if (static_cast<std::int64_t>(format) == number) return format;
  }
  return std::nullopt;
}

}  // namespace cairn
