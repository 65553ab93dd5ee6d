#include "common/io/checksum.h"

#include <algorithm>

#include <isa-l/crc.h>

namespace cairn {

std::uint32_t Crc32c(std::span<const std::byte> data, std::uint32_t crc) {
  constexpr std::size_t kPieceBytesMax = std::size_t{1} << 30;  // ISA-L takes an int
  std::uint32_t state = ~crc;
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), kPieceBytesMax));
    // ISA-L's signature is not const-correct; it only reads.
    auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
    state = crc32_iscsi(bytes, static_cast<int>(piece.size()), state);
    data = data.subspan(piece.size());
  }
  return ~state;
}

}  // namespace cairn
