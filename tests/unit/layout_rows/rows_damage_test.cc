// Damaged rows are answered with DATA_LOSS or, where a value changed into another possible value,
// with that value; never with anything else. Sanitizer builds make this test sharper.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/layout/index_run.h"
#include "kv-node/layout/rows.h"
#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kEntryBytes = 256;
constexpr int kDamageRounds = 60;

struct Kind {
  const char* name;
  std::function<std::string(test::Rng&)> encode;
  std::function<absl::Status(std::string_view)> decode;
};

std::string RandomPartsRow(test::Rng& rng) {
  std::vector<Part> parts = RandomParts(rng, kEntryBytes);
  while (parts.empty()) parts = RandomParts(rng, kEntryBytes);
  return EncodeParts(parts, kEntryBytes);
}

std::string RandomIndexRun(test::Rng& rng) {
  IndexRun run;
  run.record_bytes = kIndexRecordHeaderBytes + Draw(rng, 100);
  const auto extent =
      std::make_shared<Extent>(nullptr, ExtentKind::kIndexRun, PageIndex(9), 40, true);
  std::int64_t record = 0;
  for (std::int64_t parts = 1 + Draw(rng, 3); parts > 0; --parts) {
    Part part;
    part.id = PartId(1 + record);
    part.SetExtent(extent);
    part.offset_bytes = record * run.record_bytes;
    part.positions = Positions::Range(record, 1 + Draw(rng, 50));
    part.crcs.resize(static_cast<std::size_t>(1 + Draw(rng, 4)));
    record += part.count();
    run.parts.push_back(std::move(part));
  }
  return EncodeIndexRun(run);
}

std::vector<Kind> Kinds() {
  return {
      {"session", [](test::Rng& rng) { return EncodeSessionRow(RandomSessionRow(rng)); },
       [](std::string_view bytes) { return DecodeSessionRow(bytes).status(); }},
      {"segment", [](test::Rng& rng) { return EncodeSegmentRow(RandomSegmentRow(rng)); },
       [](std::string_view bytes) { return DecodeSegmentRow(bytes).status(); }},
      {"policy",
       [](test::Rng& rng) {
         return EncodePolicyRow({1, RandomBytes(rng, Draw(rng, 40)), RandomBytes(rng, 8)});
       },
       [](std::string_view bytes) { return DecodePolicyRow(bytes).status(); }},
      {"parts", RandomPartsRow,
       [](std::string_view bytes) { return DecodeParts(bytes, kEntryBytes).status(); }},
      {"positions",
       [](test::Rng& rng) { return EncodePositions(RandomPositions(rng, 1 + Draw(rng, 20))); },
       [](std::string_view bytes) { return DecodePositions(bytes).status(); }},
      {"index",
       [](test::Rng& rng) {
         return EncodeIndexRow({{}, RandomBytes(rng, Draw(rng, 40)), true, Draw(rng, 99)});
       },
       [](std::string_view bytes) { return DecodeIndexRow({}, bytes).status(); }},
      {"index run", RandomIndexRun,
       [](std::string_view bytes) { return DecodeIndexRun(bytes).status(); }},
      {"links", [](test::Rng& rng) { return EncodeLinks(RandomLinks(rng)); },
       [](std::string_view bytes) { return DecodeLinks(bytes).status(); }},
      {"tokens",
       [](test::Rng& rng) {
         return EncodeTokens(std::vector<std::int32_t>(static_cast<std::size_t>(Draw(rng, 9))));
       },
       [](std::string_view bytes) { return DecodeTokens(bytes).status(); }},
      {"region", [](test::Rng&) { return EncodeRegion(RegionBits(5)); },
       [](std::string_view bytes) { return DecodeRegion(bytes).status(); }},
      {"next id", [](test::Rng& rng) { return EncodeNextId(RandomNumber(rng)); },
       [](std::string_view bytes) { return DecodeNextId(bytes).status(); }},
      {"device profile", [](test::Rng& rng) { return EncodeDeviceProfile(RandomProfile(rng)); },
       [](std::string_view bytes) { return DecodeDeviceProfile(bytes).status(); }},
  };
}

void ExpectOkOrDataLoss(const absl::Status& status, const char* name) {
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << ": " << status;
  }
}

TEST(RowsDamageTest, ARowCutShortOrOfAnotherVersionIsDataLoss) {
  test::Rng rng(test::TestSeed());
  for (const Kind& kind : Kinds()) {
    for (int round = 0; round < kDamageRounds; ++round) {
      std::string row = kind.encode(rng);
      ASSERT_TRUE(kind.decode(row).ok()) << kind.name << ": " << kind.decode(row);
      EXPECT_EQ(kind.decode("").code(), absl::StatusCode::kDataLoss) << kind.name;
      // Token rows and rows of parts have no count: they may be cut between two of them.
      for (std::size_t size = 1; size < row.size(); ++size) {
        const absl::Status status = kind.decode(std::string_view(row).substr(0, size));
        ExpectOkOrDataLoss(status, kind.name);
        if (kind.name != std::string("tokens") && kind.name != std::string("parts")) {
          EXPECT_FALSE(status.ok()) << kind.name << " cut to " << size << " of " << row.size();
        }
      }
      row[0] = static_cast<char>(kSessionRowVersion + 1);  // the highest that a row has
      EXPECT_EQ(kind.decode(row).code(), absl::StatusCode::kDataLoss) << kind.name;
    }
  }
}

TEST(RowsDamageTest, ChangedBytesAreNeverMoreThanDataLoss) {
  test::Rng rng(test::TestSeed());
  for (const Kind& kind : Kinds()) {
    for (int round = 0; round < kDamageRounds; ++round) {
      const std::string row = kind.encode(rng);
      for (int damage = 0; damage < 50; ++damage) {
        std::string bytes = row;
        for (std::int64_t i = 1 + Draw(rng, 3); i > 0; --i) {
          bytes[static_cast<std::size_t>(rng.Below(bytes.size()))] = static_cast<char>(rng.Next());
        }
        ExpectOkOrDataLoss(kind.decode(bytes), kind.name);
      }
      const std::string noise = static_cast<char>(kRowVersion) + RandomBytes(rng, Draw(rng, 80));
      ExpectOkOrDataLoss(kind.decode(noise), kind.name);
      // Every count as large as a varint can say.
      std::string large(1, static_cast<char>(kRowVersion));
      for (int i = 0; i < 20; ++i) large += "\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
      ExpectOkOrDataLoss(kind.decode(large), kind.name);
    }
  }
}

TEST(RowsDamageTest, BytesBehindTheEndAreDataLoss) {
  test::Rng rng(test::TestSeed());
  for (const Kind& kind : Kinds()) {
    const std::string row = kind.encode(rng) + '\0';
    EXPECT_EQ(kind.decode(row).code(), absl::StatusCode::kDataLoss) << kind.name;
  }
}

TEST(RowsDamageTest, LinksThatNoWriterMakesAreDataLoss) {
  const auto decode = [](const std::vector<ClusterLink>& links) {
    return DecodeLinks(EncodeLinks(links)).status().code();
  };
  EXPECT_EQ(decode({{ClusterId(2), kLinkCountMax}}), absl::StatusCode::kOk);
  EXPECT_EQ(decode({}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode({{ClusterId(0), 1}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode({{ClusterId(2), 0}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode({{ClusterId(2), kLinkCountMax + 1}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode({{ClusterId(2), 2}, {ClusterId(3), 1}, {ClusterId(2), 1}}),
            absl::StatusCode::kDataLoss);
  std::vector<ClusterLink> nine;
  for (std::int64_t id = 1; id <= 9; ++id) nine.push_back({ClusterId(id), 1});
  EXPECT_EQ(decode(nine), absl::StatusCode::kDataLoss);
}

TEST(RowsDamageTest, IdsThatCountBeyondTheLargestAreDataLoss) {
  const std::string first_id = "\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
  const std::string row = std::string("\x01\x02\x04", 3) + first_id +  // two records of a log run
                          std::string("\x08\x01\x00\x01\x00\x01\x00\x00", 8);
  EXPECT_EQ(DecodeParts(row, kEntryBytes).status().code(), absl::StatusCode::kDataLoss);
}

// The cache has no slot for one: a fetch of it would end the process.
TEST(RowsDamageTest, APartLargerThanAnyIsDataLoss) {
  for (const std::int64_t excess : {0, 1}) {
    Part part;
    part.id = PartId(5);
    part.SetExtent(std::make_shared<Extent>(nullptr, ExtentKind::kLogRun, PageIndex(9), 40, true));
    part.positions = Positions::Range(0, kPartBytesMax / kEntryBytes + excess);
    part.crcs.resize(17);
    EXPECT_EQ(DecodeParts(EncodeParts({part}, kEntryBytes), kEntryBytes).ok(), excess == 0);
  }
}

TEST(RowsDamageTest, APartBeyondItsExtentIsDataLoss) {
  const auto map = std::make_shared<FreeMap>(100, 2);
  Part part;
  part.id = PartId(5);
  part.SetExtent(std::make_shared<Extent>(map, ExtentKind::kPool, PageIndex(8), 1, true));
  part.positions = Positions::Range(0, 16);
  part.crcs = {1};
  EXPECT_TRUE(DecodeParts(EncodeParts({part}, kEntryBytes), kEntryBytes).ok());
  part.positions = Positions::Range(0, 17);
  EXPECT_EQ(DecodeParts(EncodeParts({part}, kEntryBytes), kEntryBytes).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cairn::kv
