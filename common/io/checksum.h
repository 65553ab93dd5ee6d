// CRC32C (Castagnoli), hardware-accelerated by ISA-L on x86-64 and arm64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// The CRC32C of `data`, continued from `crc` (0 to begin): Crc32c(b, Crc32c(a)) == Crc32c(a then
// b).
std::uint32_t Crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);

}  // namespace cairn
