// What stored rows name is refused where it lies beyond the extent file, and where rows mean two
// extents by one page, also when they were read in different threads.
#include "kv-node/engine/load/named_extents.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

constexpr std::int64_t kPages = 1000;
constexpr std::int64_t kOfEntryBytes = 256;

StoredPart PartIn(ExtentKind kind, std::int64_t first_page, std::int64_t page_count,
                  std::int64_t entry_count = 1) {
  StoredPart part;
  part.kind = kind;
  part.first_page = PageIndex(first_page);
  part.page_count = page_count;
  part.positions = Positions::Range(0, entry_count);
  return part;
}

NamedExtents Named(const std::vector<StoredPart>& parts) {
  NamedExtents named;
  for (const StoredPart& part : parts) named.Add(part, part.count() * kOfEntryBytes);
  return named;
}

class NamedExtentsTest : public testing::Test {
 protected:
  absl::Status Check(const NamedExtents& named) {
    CAIRN_RETURN_IF_ERROR(table_.Add(named));
    return table_.Check();
  }
  ExtentTable table_{std::make_shared<FreeMap>(kPages, 2)};
};

TEST_F(NamedExtentsTest, PartsThatShareTheirExtentsAreCounted) {
  NamedExtents named = Named({PartIn(ExtentKind::kLogRun, 10, 4, 3),
                              PartIn(ExtentKind::kPool, 20, 1), PartIn(ExtentKind::kPool, 20, 1)});
  NamedExtents later =
      Named({PartIn(ExtentKind::kLogRun, 10, 4, 2), PartIn(ExtentKind::kPackedRun, 30, 8)});
  later.Add(PartIn(ExtentKind::kLogRun, 40, 2));
  named.Append(later);
  ASSERT_TRUE(Check(named).ok());
  EXPECT_EQ(table_.LogExtents().size(), 2U);
  const auto runs = table_.LogRunsOf(named);
  ASSERT_EQ(runs.size(), 1U);  // no cluster names the other
  EXPECT_EQ(runs.at(PageIndex(10)).named_bytes, 5 * kOfEntryBytes);
  EXPECT_EQ(runs.at(PageIndex(10)).extent, table_.runs().at(PageIndex(10)));
}

TEST_F(NamedExtentsTest, PagesBeyondTheExtentFileAreRefused) {
  for (const ExtentKind kind : {ExtentKind::kLogRun, ExtentKind::kPool, ExtentKind::kPackedRun}) {
    EXPECT_EQ(Check(Named({PartIn(kind, kPages - 1, 2)})).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Check(Named({PartIn(kind, 1, 1)})).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(NamedExtentsTest, TwoExtentsAtOnePageAreRefused) {
  const StoredPart log = PartIn(ExtentKind::kLogRun, 10, 4);
  const StoredPart pool = PartIn(ExtentKind::kPool, 10, 4);
  const std::vector<std::vector<StoredPart>> pairs = {
      {log, PartIn(ExtentKind::kLogRun, 10, 2)},
      {log, pool},
      {pool, PartIn(ExtentKind::kPool, 10, 2)},
      {pool, PartIn(ExtentKind::kPackedRun, 10, 4)},
  };
  for (const std::vector<StoredPart>& pair : pairs) {
    NamedExtents together = Named({pair[0]});
    together.Append(Named({pair[1]}));
    for (const NamedExtents& named : {Named(pair), together}) {
      ExtentTable table = table_;
      const absl::Status added = table.Add(named);
      EXPECT_EQ((added.ok() ? table.Check() : added).code(), absl::StatusCode::kDataLoss);
    }
    // Of two segments.
    ExtentTable table = table_;
    ASSERT_TRUE(table.Add(Named({pair[0]})).ok());
    const absl::Status added = table.Add(Named({pair[1]}));
    EXPECT_EQ((added.ok() ? table.Check() : added).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(NamedExtentsTest, ARunOfOneRowIsNamedByNoOther) {
  const StoredPart run = PartIn(ExtentKind::kIndexRun, 10, 4);
  ASSERT_TRUE(table_.AddRunOfOne(run).ok());
  EXPECT_EQ(table_.AddRunOfOne(run).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cairn::kv
