#include "kv-node/layout/superblock.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/io/checksum.h"
#include "tests/tools/says.h"

namespace cairn::kv {
namespace {

using test::Says;
using Copy = std::vector<std::byte>;

Superblock Example(std::uint64_t sequence) {
  Superblock superblock{.sequence = sequence,
                        .page_count = 4096,
                        .create_time_unix_seconds = 1'700'000'000,
                        .metadata_sequence = 0x1122334455667788};
  for (std::size_t i = 0; i < superblock.store_id.size(); ++i) {
    superblock.store_id[i] = static_cast<std::byte>(i + 1);
  }
  return superblock;
}

Copy ToCopy(const SuperblockBytes& bytes) {
  Copy copy(sizeof bytes);
  std::memcpy(copy.data(), &bytes, sizeof bytes);
  return copy;
}

// A copy with a changed field and a checksum that fits.
Copy Forged(std::uint64_t sequence, const std::function<void(SuperblockBytes&)>& change) {
  SuperblockBytes bytes = EncodeSuperblock(Example(sequence));
  change(bytes);
  Copy copy = ToCopy(bytes);
  bytes.crc32c = Crc32c(std::span(copy).first(offsetof(SuperblockBytes, crc32c)));
  return ToCopy(bytes);
}

Copy Of(std::uint64_t sequence) { return ToCopy(EncodeSuperblock(Example(sequence))); }

TEST(Superblock, DecodesToWhatWasEncoded) {
  const absl::StatusOr<Superblock> decoded = DecodeSuperblock(Of(8), 0);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Example(8));
}

// These bytes are on disks already: a change of them needs a new format version.
TEST(Superblock, BytesOfFormatVersionFourAreFixed) {
  const Copy copy = Of(0x0102030405060708);
  std::string head;
  for (int i = 0; i < 64; ++i) {
    head += fmt::format("{:02x}", std::to_integer<unsigned>(copy[static_cast<std::size_t>(i)]));
  }
  EXPECT_EQ(head,
            "434149524e4b5600"
            "04000000"
            "00100000"
            "0807060504030201"
            "0102030405060708090a0b0c0d0e0f10"
            "0010000000000000"
            "00f1536500000000"
            "8877665544332211");
}

TEST(Superblock, OfOlderFormatVersionsAreRead) {
  for (std::uint32_t version = kFormatVersionMin; version < kFormatVersion; ++version) {
    const Copy old = Forged(8, [version](auto& b) { b.format_version = version; });
    const absl::StatusOr<Superblock> decoded = DecodeSuperblock(old, 0);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, Example(8));
  }
  EXPECT_FALSE(DecodeSuperblock(Forged(8, [](auto& b) { b.format_version = 0; }), 0).ok());
}

TEST(Superblock, EveryDamagedBitIsFound) {
  Copy copy = Of(2);
  for (std::size_t bit = 0; bit < copy.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << bit % 8);
    copy[bit / 8] ^= mask;
    EXPECT_EQ(DecodeSuperblock(copy, 0).status().code(), absl::StatusCode::kDataLoss) << bit;
    copy[bit / 8] ^= mask;
  }
  EXPECT_TRUE(DecodeSuperblock(copy, 0).ok());
}

TEST(Superblock, TornCopiesAreFound) {
  for (std::size_t at = 512; at < 4096; at += 512) {
    Copy torn = Of(4);
    const Copy old(torn.size());
    std::copy(old.begin() + static_cast<std::ptrdiff_t>(at), old.end(),
              torn.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_EQ(DecodeSuperblock(torn, 0).status().code(), absl::StatusCode::kDataLoss) << at;
  }
}

TEST(Superblock, AnIntactCopyOfAnotherFormatIsRefusedAndNotCalledDamaged) {
  const absl::Status newer =
      DecodeSuperblock(Forged(2, [](auto& b) { b.format_version = 7; }), 0).status();
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(newer, "format version 7, this program reads versions 1 to 4")) << newer;
  const absl::Status pages =
      DecodeSuperblock(Forged(2, [](auto& b) { b.page_bytes = 16384; }), 0).status();
  EXPECT_EQ(pages.code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status reserved =
      DecodeSuperblock(Forged(2, [](auto& b) { b.reserved[100] = 1; }), 0).status();
  EXPECT_EQ(reserved.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Superblock, PageCountsOutOfRangeAreRefused) {
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{0}, kStorePageCountMin - 1,
                                   kStorePageCountMax + 1, std::int64_t{1} << 62}) {
    const Copy copy = Forged(2, [&](auto& b) { b.page_count = count; });
    EXPECT_EQ(DecodeSuperblock(copy, 0).status().code(), absl::StatusCode::kDataLoss) << count;
  }
}

TEST(Superblock, ACopyInThePlaceOfTheOtherIsRefused) {
  EXPECT_EQ(DecodeSuperblock(Of(2), 1).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ChooseSuperblock, TakesTheNewerOfTwo) {
  for (const auto& [first, second, newest] :
       {std::tuple{2, 1, 2}, std::tuple{2, 3, 3}, std::tuple{10, 9, 10}}) {
    const auto choice = ChooseSuperblock(Of(static_cast<std::uint64_t>(first)),
                                         Of(static_cast<std::uint64_t>(second)));
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->superblock.sequence, static_cast<std::uint64_t>(newest));
    EXPECT_TRUE(choice->other_copy.ok());
  }
}

TEST(ChooseSuperblock, TakesTheValidOneWhenTheOtherIsDamaged) {
  Copy damaged = Of(3);
  damaged[40] ^= std::byte{1};
  const auto first = ChooseSuperblock(Of(2), damaged);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->superblock.sequence, 2U);
  EXPECT_TRUE(Says(first->other_copy, "copy 1")) << first->other_copy;
  const auto second = ChooseSuperblock(Copy(4096), Of(3));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->superblock.sequence, 3U);
  EXPECT_TRUE(Says(second->other_copy, "copy 0")) << second->other_copy;
}

TEST(ChooseSuperblock, TwoDamagedCopiesAreDataLossWithAdvice) {
  const absl::Status status = ChooseSuperblock(Copy(4096), Copy(4096)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Says(status, "restore the store's directory from a backup")) << status;
}

TEST(ChooseSuperblock, NeverFallsBackFromANewerFormatToAnOlderCopy) {
  const Copy newer = Forged(3, [](auto& b) { b.format_version = kFormatVersion + 1; });
  EXPECT_EQ(ChooseSuperblock(Of(2), newer).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ChooseSuperblock, CopiesOfDifferentStoresAreRefused) {
  const Copy other = Forged(3, [](auto& b) { b.store_id[0] = std::byte{0x77}; });
  EXPECT_EQ(ChooseSuperblock(Of(2), other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ChooseSuperblock, CopiesOfTwoSizesAreAResizeThatWasCut) {
  const Copy resized = Forged(3, [](auto& b) { b.page_count += 100; });
  const auto choice = ChooseSuperblock(Of(2), resized);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->superblock.page_count, Example(3).page_count + 100);
  EXPECT_TRUE(choice->size_half_recorded);
  EXPECT_FALSE(ChooseSuperblock(Of(2), Of(3))->size_half_recorded);
}

TEST(StoreId, IsRandomAndPrintsAsHex) {
  EXPECT_NE(NewStoreId(), NewStoreId());
  EXPECT_EQ(FormatStoreId(Example(1).store_id), "0102030405060708090a0b0c0d0e0f10");
}

}  // namespace
}  // namespace cairn::kv
