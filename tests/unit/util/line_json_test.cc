#include "kv-node/util/line_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kv-node/util/finding.h"

namespace cairn::kv {
namespace {

TEST(LineJsonTest, FieldsOfALineAreFieldsOfTheObject) {
  EXPECT_EQ(LineAsJson("summary findings=2 sessions=0"),
            R"({"line": "summary", "findings": 2, "sessions": 0})");
  EXPECT_EQ(LineAsJson("repair action=row_removed row=runs/00ff dry_run=1"),
            R"({"line": "repair", "action": "row_removed", "row": "runs/00ff", "dry_run": 1})");
  EXPECT_EQ(LineAsJson("repair row=007 reason=\"its row = gone\" session=3"),
            R"({"line": "repair", "row": "007", "reason": "its row = gone", "session": 3})");
  EXPECT_EQ(LineAsJson("finding next_id=18446744073709551615 reason=\"\""),
            R"({"line": "finding", "next_id": "18446744073709551615", "reason": ""})");
}

TEST(LineJsonTest, FindingsAreReadAsTheyWereWritten) {
  Finding finding;
  finding.kind = FindingKind::kPageDamaged;
  finding.segment = SegmentId(9);
  finding.cluster = ClusterKey{.layer = 1, .head = 2, .cluster_id = ClusterId(77)};
  finding.page = 5;
  finding.page_count = 2;
  finding.reason = "read \"x\"\nof \x1b[31m page\xff 5: EIO";
  const auto json = nlohmann::json::parse(LineAsJson(FormatFinding(finding)));
  EXPECT_EQ(json["line"], "finding");
  EXPECT_EQ(json["kind"], "page_damaged");
  EXPECT_EQ(json["segment"], 9);
  EXPECT_EQ(json["cluster"], 77);
  EXPECT_EQ(json["pages"], 2);
  EXPECT_EQ(json["reason"], "read 'x''of \x1b[31m page\xef\xbf\xbd 5: EIO");
}

}  // namespace
}  // namespace cairn::kv
