// Known values: RFC 3720 (iSCSI), appendix B.4, and the check value of the CRC catalogues.
#include "common/io/checksum.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One bit at a time, from the definition: reflected polynomial 0x82f63b78.
std::uint32_t SlowCrc32c(std::span<const std::byte> data) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const std::byte byte : data) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

TEST(Crc32cTest, AgreesWithPublishedValues) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43U);
  EXPECT_EQ(Crc32c({}), 0U);
}

TEST(Crc32cTest, PiecesGiveTheValueOfTheWhole) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> data(static_cast<std::size_t>(rng.Below(9000)));
    for (std::byte& byte : data) byte = static_cast<std::byte>(rng.Next());
    const std::size_t cut = static_cast<std::size_t>(rng.Below(data.size() + 1));
    const std::span<const std::byte> all(data);
    const std::uint32_t whole = Crc32c(all);
    EXPECT_EQ(whole, SlowCrc32c(all)) << data.size() << " bytes";
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), whole) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace cairn
