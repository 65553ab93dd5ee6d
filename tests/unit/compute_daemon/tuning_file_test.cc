// Files of cairn-tune: what is read of one, and whom it is refused by.
#include "compute-node/daemon/tuning_file.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"

namespace cairn::compute {
namespace {

class TuningFileTest : public testing::Test {
 protected:
  TuningFileTest() {
    here_.cairn_version = "0.1.0";
    here_.model_digest = std::string(31, '\1') + '\xab';
    here_.machine = "x86_64";
    here_.cpu = "A processor";
    std::string digest;
    for (int i = 0; i < 31; ++i) digest += "01";
    json_ = {{"format_version", 1},
             {"cairn_version", "0.1.0"},
             {"model_name", "model.gguf"},
             {"model_digest", digest + "ab"},
             {"machine", "x86_64"},
             {"cpu", "A processor"},
             {"flash", "nvme"},
             {"kv_format", "f16"},
             {"dram_budget_bytes", 32 << 20},
             {"entries", {Entry(16384, "kvswap"), Entry(4096, "dynakv")}}};
  }

  static nlohmann::json Entry(std::int64_t context_tokens, const std::string& policy) {
    return {{"conversation_count", 1},
            {"context_tokens", context_tokens},
            {"policy", policy},
            {"select_percent", 2.5},
            {"select_tokens_min", 128},
            {"select_tokens_max", 512},
            {"cluster_target_entries", 16},
            {"small_key_bits", policy == "kvswap" ? "2211" : ""},
            {"figures", {{"tokens_per_second", 12.5}, {"memory_bytes", 1000}}}};
  }

  absl::StatusOr<Tuning> Read(const std::string& text) {
    const std::string path = folder_.File("tuning.json");
    std::ofstream(path) << text;
    return ReadTuningFile(path, here_, options_);
  }
  absl::Status Refusal() { return Read(json_.dump()).status(); }
  // Of the file with another value.
  absl::Status RefusalWith(const std::string& name, const nlohmann::json& value) {
    const nlohmann::json whole = json_;
    json_[nlohmann::json::json_pointer(name)] = value;
    absl::Status status = Refusal();
    json_ = whole;
    return status;
  }

  const test::TempDir folder_;
  TunedFor here_;
  SessionOptions options_;
  nlohmann::json json_;
};

TEST_F(TuningFileTest, EntriesAreReadWhole) {
  const absl::StatusOr<Tuning> tuning = Read(json_.dump());
  ASSERT_TRUE(tuning.ok()) << Message(tuning.status());
  ASSERT_EQ(tuning->entries().size(), 2U);
  const TunedEntry& entry = tuning->For(16384);
  EXPECT_EQ(entry.context_tokens, 16384);
  const SessionOptions made = entry.On(options_);
  EXPECT_EQ(made.policy.name, "kvswap");
  EXPECT_EQ(made.policy.selection.select_percent, 2.5);
  EXPECT_EQ(made.policy.selection.select_tokens_min, 128);
  EXPECT_EQ(made.policy.selection.select_tokens_max, 512);
  EXPECT_EQ(made.policy.selection.cluster_target_entries, 16);
  EXPECT_EQ(made.small_key_bits, "2211");
  EXPECT_EQ(made.dram_budget_bytes, options_.dram_budget_bytes);
}

TEST_F(TuningFileTest, WhatItIsNotForIsNamed) {
  const std::pair<std::string, nlohmann::json> others[] = {{"/cairn_version", "0.2.0"},
                                                           {"/model_digest", "ffff"},
                                                           {"/machine", "aarch64"},
                                                           {"/cpu", "Another"},
                                                           {"/kv_format", "q8"}};
  for (const auto& [name, value] : others) {
    const absl::Status status = RefusalWith(name, value);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << name;
    EXPECT_TRUE(test::Says(status, value.get<std::string>()));
    EXPECT_TRUE(test::Says(status, "run cairn-tune here"));
    EXPECT_TRUE(test::Says(status, folder_.File("tuning.json")));
  }
  const absl::Status more = RefusalWith("/dram_budget_bytes", std::int64_t{1} << 30);
  EXPECT_TRUE(absl::IsFailedPrecondition(more));
  EXPECT_TRUE(test::Says(more, "a dram_budget_bytes of 1073741824, and 67108864 is configured"));
}

TEST_F(TuningFileTest, WhatIsDamagedOrOutOfRangeIsNamed) {
  EXPECT_TRUE(test::Says(Read("").status(), "no file of cairn-tune"));
  EXPECT_EQ(Message(Read("{\"format_version\": NaN}").status()).find('\n'), std::string::npos);
  EXPECT_TRUE(test::Says(RefusalWith("/dram_budget_bytes", 0), "dram_budget_bytes is 0"));
  EXPECT_TRUE(test::Says(Read(json_.dump().substr(0, 200)).status(), "no file of cairn-tune"));
  EXPECT_TRUE(test::Says(Read("[1]").status(), "no file of cairn-tune"));
  EXPECT_TRUE(test::Says(RefusalWith("/colour", "red"), "colour"));
  EXPECT_TRUE(test::Says(RefusalWith("/format_version", 2), "its format is 2"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries", nlohmann::json::array()), "no entries"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/1/conversation_count", 4),
                         "entry 2: conversation_count is 4"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/0/context_tokens", 0), "context_tokens is 0"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/0/policy", "nope"), "policy is 'nope'"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/0/select_percent", 0), "select_percent is 0"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/0/cluster_target_entries", 65),
                         "cluster_target_entries is 65"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/0/small_key_bits", "5"), "small_key_bits is '5'"));
  EXPECT_TRUE(test::Says(RefusalWith("/entries/1/context_tokens", 16384),
                         "two entries have 16384 context_tokens"));
  EXPECT_EQ(ReadTuningFile(folder_.File("none.json"), here_, options_).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TuningFileTest, TheNearestLengthCounts) {
  const absl::StatusOr<Tuning> tuning = Read(json_.dump());
  ASSERT_TRUE(tuning.ok());
  const std::pair<std::int64_t, std::int64_t> nearest[] = {
      {0, 4096}, {4096, 4096}, {10239, 4096}, {10240, 16384}, {16384, 16384}, {1 << 30, 16384}};
  for (const auto& [count, context] : nearest) {
    EXPECT_EQ(tuning->For(count).context_tokens, context) << count;
  }
}

TEST(ThisDeviceTest, HasAllNames) {
  const TunedFor here = ThisDevice(std::string(32, 'd'));
  EXPECT_EQ(here.cairn_version, CAIRN_VERSION);
  EXPECT_FALSE(here.machine.empty());
  EXPECT_FALSE(here.cpu.empty());
}

}  // namespace
}  // namespace cairn::compute
