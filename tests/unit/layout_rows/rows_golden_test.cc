// Rows byte by byte: what is on disk is for ever, so a change here needs a new row version. The
// worked examples of docs/on-disk-format.md are these.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kv-node/layout/rows.h"

namespace cairn::kv {
namespace {

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

TEST(RowsGoldenTest, Keys) {
  EXPECT_EQ(Hex(SessionKeyBytes(SessionId(258))), "0000000000000102");
  EXPECT_EQ(Hex(SegmentHeadKey(SegmentId(9))), "000000000000000968");
  EXPECT_EQ(Hex(SegmentPolicyKey(SegmentId(9))), "000000000000000973");
  EXPECT_EQ(Hex(SegmentTokensKey(SegmentId(9), 4)), "00000000000000097400000004");
  const ClusterKey key = {3, 1, ClusterId(57)};
  EXPECT_EQ(Hex(ClusterRowKey(SegmentId(9), key, ClusterRowKind::kParts)),
            "0000000000000009"    // segment
            "0003"                // layer
            "0002"                // head + 1
            "70"                  // 'p'
            "000000000000003a");  // cluster + 1
  EXPECT_EQ(Hex(IndexRowKey(SegmentId(9), key)),
            "000000000000000900030002"
            "0000000000000039");
  EXPECT_EQ(Hex(LinkRowKey(SegmentId(9), key)),
            "000000000000000900030002"
            "0000000000000039");
  EXPECT_EQ(Hex(RegionKey(SegmentId(9), 2)), "000000000000000900000002");
}

TEST(RowsGoldenTest, PartsOfACluster) {
  const auto map = std::make_shared<FreeMap>(20000, 2);
  Part placed;
  placed.id = PartId(80411);
  placed.SetExtent(std::make_shared<Extent>(map, ExtentKind::kPool, PageIndex(212), 2, true));
  placed.positions = Positions::FromUnsorted({4100, 4101, 4102, 4300, 4301});
  placed.crcs = {0x11223344};
  Part logged;
  logged.id = PartId(81002);
  logged.SetExtent(std::make_shared<Extent>(map, ExtentKind::kLogRun, PageIndex(9000), 12, true));
  logged.offset_bytes = 1536;
  logged.positions = Positions::Range(4711, 1);
  logged.crcs = {0xaabbccdd};
  EXPECT_EQ(Hex(EncodeParts({placed, logged}, 512)),
            "01"  // version
            "01"
            "02"      // one part; pool (1), upwards
            "9bf404"  // part 80411
            "d401"
            "02"
            "00"  // pages 212, 213; offset 0
            "02"  // two runs of positions:
            "8420"
            "03"  //   4100, three
            "c501"
            "02"  //   197 further on, two
            "01"
            "44332211"  // one checksum
            "01"
            "04"      // one part; log run (2), upwards
            "eaf804"  // part 81002
            "a846"
            "0c"
            "800c"  // 12 pages from 9000; offset 1536
            "01"
            "e724"
            "01"  // position 4711
            "01"
            "ddccbbaa");  // one checksum
}

TEST(RowsGoldenTest, SmallRows) {
  EXPECT_EQ(Hex(EncodePositions(Positions::FromUnsorted({5, 6, 9}))),
            "0102"
            "0502"
            "0201");
  EXPECT_EQ(Hex(EncodeIndexRow({{1, ClusterId(57)}, "abc", true, 300})),
            "01"
            "01"
            "ac02"
            "03616263");
  EXPECT_EQ(Hex(EncodeLinks({{ClusterId(300), 64}, {ClusterId(58), 1}})),
            "01"
            "02"
            "ac0240"
            "3a01");
  EXPECT_EQ(Hex(EncodeTokens({1, 1023})),
            "01"
            "01000000"
            "ff030000");
  EXPECT_EQ(Hex(EncodePolicyRow({2, "state", "r"})),
            "01"
            "02"
            "057374617465"
            "0172");
  EXPECT_EQ(Hex(EncodeNextId(300)), "01ac02");
  EXPECT_EQ(DeviceProfileKey(""), "device_profile");
  EXPECT_EQ(DeviceProfileKey("emmc"), "device_profile+emmc");
  EXPECT_EQ(Hex(EncodeDeviceProfile({.device_name = "dev",
                                     .by_size = {{4096, 32, 300}},
                                     .by_depth = {{16384, 1, 301}},
                                     .page_latency = std::chrono::microseconds(80),
                                     .knee_bytes = 32768,
                                     .break_even_gap_bytes = 24576,
                                     .queue_depth = 8})),
            "01"
            "03646576"
            "50"
            "808002"
            "80c001"
            "08"
            "01"
            "8020"
            "20"
            "ac02"
            "01"
            "808001"
            "01"
            "ad02");
  RegionBits bits;
  bits[0] = bits[9] = bits[255] = true;
  EXPECT_EQ(Hex(EncodeRegion(bits)),
            "01"
            "0102" +
                std::string(58, '0') + "80");
}

TEST(RowsGoldenTest, SessionAndSegmentRows) {
  const EntryLayout layout = {5, 2, 64, KvFormat::kF16};
  const SegmentKey key = {std::string(32, 'm'), "", 0, "rope", KvFormat::kF16, "app"};
  const std::string layout_hex =
      "05"
      "02"
      "40"
      "02";
  std::string digest_hex;
  for (int i = 0; i < 32; ++i) digest_hex += "6d";
  const std::string key_hex = "20" + digest_hex +
                              "00"
                              "00000000"
                              "04726f7065"
                              "02"
                              "03617070";

  SessionRow session;
  session.segment = SegmentId(9);
  session.epoch = Epoch(3);
  session.op_seq = OpSeq(200);
  session.layout = layout;
  session.key = key;
  session.label = "hi";
  session.token_count = 4900;
  session.flash_bytes = 1;
  session.create_time_us = 2;
  session.checkpoint_time_us = 3;
  session.uid = std::string(16, 'u');
  session.owner = {std::string(16, 'o'), 5};
  session.lifetime = SessionLifetime::kEphemeral;
  session.creator = "me";
  session.app = AppId(7);
  const auto repeated = [](const std::string& byte) {
    std::string hex;
    for (int i = 0; i < 16; ++i) hex += byte;
    return hex;
  };
  EXPECT_EQ(Hex(EncodeSessionRow(session)),
            "03"
            "09"
            "03"
            "c801" +
                layout_hex + key_hex +
                "026869"
                "a426"
                "01"
                "02"
                "03"
                "10" +
                repeated("75") + "10" + repeated("6f") +
                "05"
                "03"
                "026d65"
                "07");

  SegmentRow segment;
  segment.parent = SegmentId(8);
  segment.start = 4096;
  segment.token_count = 4900;
  segment.has_checkpoint = true;
  segment.next_cluster_ids = {58, 300};
  segment.key = key;
  segment.layout = layout;
  segment.app = AppId(7);
  EXPECT_EQ(Hex(EncodeSegmentRow(segment)),
            "02"
            "08"
            "8020"
            "a426"
            "02" +
                layout_hex + key_hex +
                "02"
                "3a"
                "ac02"
                "07");
}

}  // namespace
}  // namespace cairn::kv
