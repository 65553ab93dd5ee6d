// How the elements of KV entries are stored. The numbers are on disk and in the protocol: never
// change one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class KvFormat : std::int32_t {
  kF32 = 1,
  kF16 = 2,
};

constexpr std::int64_t KvElementBytes(KvFormat format) { return format == KvFormat::kF32 ? 4 : 2; }

// One entry: the K row, then the V row, of one token in one layer for one KV head.
constexpr std::int64_t KvEntryBytes(KvFormat format, std::int64_t head_dim) {
  return 2 * head_dim * KvElementBytes(format);
}

constexpr std::string_view KvFormatName(KvFormat format) {
  return format == KvFormat::kF32 ? "f32" : "f16";
}

// "f32" or "f16", as users write it; nullopt for anything else.
constexpr std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  if (name == "f32") {
    return KvFormat::kF32;
  }
  if (name == "f16") {
    return KvFormat::kF16;
  }
  return std::nullopt;
}

// For numbers from outside: nullopt for one that no format has.
constexpr std::optional<KvFormat> KvFormatFromNumber(std::int64_t number) {
  if (number == static_cast<std::int64_t>(KvFormat::kF32)) {
    return KvFormat::kF32;
  }
  if (number == static_cast<std::int64_t>(KvFormat::kF16)) {
    return KvFormat::kF16;
  }
  return std::nullopt;
}

}  // namespace cairn
