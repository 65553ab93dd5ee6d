// Two parts that grow inward from the ends of one pool: each has bytes of the page in the middle.
#include "kv-node/util/segment_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include <gtest/gtest.h>

#include "tests/tools/temp_dir.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPages = 32;
constexpr SegmentId kSegment{9};

class TwoEndedPool : public testing::Test {
 protected:
  void SetUp() override {
    MetaOptions meta;
    meta.path = "/two-ended";
    meta.in_memory = true;
    auto opened = MetaStore::Open(meta);
    ASSERT_TRUE(opened.ok());
    meta_ = *std::move(opened);
    fd_ = open(dir_.File("extents").c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(ftruncate(fd_, kPages * kPageBytes), 0);
    row_.layout = SmallLayout();
    row_.key = SmallKey();
    extent_ = std::make_shared<Extent>(UnusedMap(), ExtentKind::kPool, PageIndex(4), 2, true);
  }
  void TearDown() override { close(fd_); }

  // A part of `count` entries at one end, with its bytes on the disk.
  Part Write(PartId id, Direction direction, std::int64_t first, std::int64_t count,
             std::int64_t offset_bytes = 0) {
    Part part;
    part.id = id;
    part.SetExtent(extent_);
    part.direction = direction;
    part.offset_bytes = offset_bytes;
    part.positions = Positions::Range(first, count);
    const ByteRange range = RangeOf(part, kEntryBytes, 0, count);
    const std::string bytes(static_cast<std::size_t>(range.end - range.begin),
                            static_cast<char>('a' + id.value()));
    std::memcpy(pool_.data() + range.begin, bytes.data(), bytes.size());
    for (const PagePiece& piece : PiecesOf(part, kEntryBytes, 0, count)) {
      const std::int64_t begin = (piece.page.value() - extent_->first().value()) * kPageBytes;
      part.crcs.push_back(PartCrc(store_id_, id, piece.page_number,
                                  std::as_bytes(std::span(pool_).subspan(
                                      static_cast<std::size_t>(begin + piece.begin),
                                      static_cast<std::size_t>(piece.end - piece.begin)))));
    }
    return part;
  }
  void Store(const Part& low, const Part& high) {
    EXPECT_EQ(pwrite(fd_, pool_.data(), pool_.size(), 4 * kPageBytes),
              static_cast<ssize_t>(pool_.size()));
    MetaBatch batch;
    RegionBits bits;
    bits.set(4);
    bits.set(5);
    batch.Put(Family::kPools, RegionKey(kSegment, 0), EncodeRegion(bits));
    std::int64_t cluster = 1;
    for (const Part* part : {&low, &high}) {
      batch.Put(Family::kClusters,
                ClusterRowKey(kSegment, {0, 0, ClusterId(cluster++)}, ClusterRowKind::kParts),
                EncodeParts({*part}, kEntryBytes));
    }
    ASSERT_TRUE(meta_->CommitAndWait(std::move(batch)).ok());
  }
  std::vector<std::string> Check() {
    const StoreView store{store_id_, fd_, "extents", kPages, &meta_->reader()};
    FreeMap named(kPages, 2);
    StoreSurvey survey;
    std::vector<std::string> lines;
    const FindingSink sink = [&](const Finding& f) { lines.push_back(FormatFinding(f)); };
    CheckSegment(store, kSegment, row_, named, sink, survey);
    checked_ = survey.checked_page_count;
    return lines;
  }

  static constexpr std::int64_t kEntryBytes = 160;
  const test::TempDir dir_;
  const StoreId store_id_{std::byte{1}};
  std::unique_ptr<MetaStore> meta_;
  SegmentRow row_;
  ExtentRef extent_;
  std::vector<char> pool_ = std::vector<char>(2 * kPageBytes);
  int fd_ = -1;
  std::int64_t checked_ = 0;
};

TEST_F(TwoEndedPool, PartsThatShareAPageAreBothChecked) {
  // 4800 bytes from the low end, 3200 from the high one: 8000 of 8192.
  Store(Write(PartId(1), Direction::kUp, 0, 30), Write(PartId(2), Direction::kDown, 30, 20));
  EXPECT_TRUE(Check().empty());
  EXPECT_EQ(checked_, 3);
}

TEST_F(TwoEndedPool, DamageIsSaidOfThePartThatHasTheByte) {
  Store(Write(PartId(1), Direction::kUp, 0, 30), Write(PartId(2), Direction::kDown, 30, 20));
  const char wrong = '?';
  ASSERT_EQ(pwrite(fd_, &wrong, 1, 4 * kPageBytes + 4799), 1);
  const auto low = Check();
  ASSERT_EQ(low.size(), 1U);
  EXPECT_NE(low[0].find("kind=page_damaged segment=9 layer=0 head=0 cluster=1 part=1 page=5"),
            std::string::npos)
      << low[0];
  ASSERT_EQ(pwrite(fd_, pool_.data() + 4799, 1, 4 * kPageBytes + 4799), 1);
  ASSERT_EQ(pwrite(fd_, &wrong, 1, 6 * kPageBytes - 3200), 1);
  const auto high = Check();
  ASSERT_EQ(high.size(), 1U);
  EXPECT_NE(high[0].find("part=2 page=5"), std::string::npos) << high[0];
  ASSERT_EQ(pwrite(fd_, pool_.data() + 2 * kPageBytes - 3200, 1, 6 * kPageBytes - 3200), 1);
  // What lies between the two is nobody's.
  ASSERT_EQ(pwrite(fd_, &wrong, 1, 4 * kPageBytes + 4801), 1);
  EXPECT_TRUE(Check().empty());
}

TEST_F(TwoEndedPool, PartsThatMeetInTheMiddleAreOverlapping) {
  // 4960 and 3360 bytes: more than 8192.
  Store(Write(PartId(1), Direction::kUp, 0, 31), Write(PartId(2), Direction::kDown, 31, 21));
  const auto lines = Check();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("kind=part_overlap"), std::string::npos) << lines[0];
}

TEST_F(TwoEndedPool, TwoPartsAtOneEndAreOverlapping) {
  Store(Write(PartId(1), Direction::kDown, 0, 3), Write(PartId(2), Direction::kDown, 3, 2));
  const auto lines = Check();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("kind=part_overlap"), std::string::npos) << lines[0];
}

TEST_F(TwoEndedPool, OnePartIdTwiceIsNamed) {
  Store(Write(PartId(1), Direction::kUp, 0, 3), Write(PartId(1), Direction::kDown, 3, 2));
  const auto lines = Check();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("two parts of this id"), std::string::npos) << lines[0];
}

TEST_F(TwoEndedPool, APackedRunOfAnOpenSegmentIsNamed) {
  extent_ = std::make_shared<Extent>(UnusedMap(), ExtentKind::kPackedRun, PageIndex(4), 2, true);
  Store(Write(PartId(1), Direction::kUp, 0, 30),
        Write(PartId(2), Direction::kUp, 30, 20, /*offset_bytes=*/30 * kEntryBytes));
  const auto lines = Check();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("kind=part "), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("no extent of this kind"), std::string::npos) << lines[0];
  row_.sealed = true;
  EXPECT_TRUE(Check().empty());
}

}  // namespace
}  // namespace cairn::kv
