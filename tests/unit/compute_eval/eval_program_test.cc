// What cairn-policy-eval takes and writes, around the measuring.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/eval/arguments.h"
#include "compute-node/eval/output_file.h"
#include "compute-node/eval/run_manifest.h"
#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"

namespace cairn::eval {
namespace {

// What the command line is refused with; empty: it is not.
std::string Refusal(const std::string& command_line, Arguments& arguments) {
  CLI::App app;
  AddOptions(app, arguments);
  try {
    app.parse(command_line);
    CheckOptions(app, arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

std::string Refusal(const std::string& command_line) {
  Arguments arguments;
  return Refusal(command_line, arguments);
}

TEST(ArgumentsTest, AModelNeedsATextAndATraceNeither) {
  EXPECT_EQ(Refusal("--model m --text t --policy full --clusters --select-ahead --estimate 5"), "");
  EXPECT_EQ(Refusal("--model m --tasks t --document 3 --policy full,dynakv"), "");
  EXPECT_EQ(Refusal("--trace t --policy full --no-select-ahead --kv-format q8 --every 3"), "");
  EXPECT_NE(Refusal("--policy full").find("--model or --trace"), std::string::npos);
  EXPECT_NE(Refusal("--model m --policy full").find("--text or --tasks"), std::string::npos);
  EXPECT_NE(Refusal("--trace t").find("--policy"), std::string::npos);
}

TEST(ArgumentsTest, WhatATraceHasNoUseForIsNamed) {
  for (const std::string option :
       {"--model m", "--text t", "--tasks t", "--tasks t --document 1", "--prefill 10",
        "--tokens 10", "--clusters", "--estimate 5%", "--select-ahead"}) {
    const std::string said = Refusal("--trace t --policy full " + option);
    EXPECT_NE(said.find(option.substr(0, option.find(' '))), std::string::npos) << said;
    EXPECT_NE(said.find("--trace"), std::string::npos) << said;
  }
  const std::string said = Refusal("--model m --text t --policy full --rotary-pairs halves");
  EXPECT_NE(said.find("--rotary-pairs"), std::string::npos) << said;
}

TEST(ArgumentsTest, KeyRunsAreInsteadOfPolicies) {
  Arguments arguments;
  EXPECT_EQ(Refusal("--model m --text t --key-runs 0.01,0.5 --tokens 9 --kv-format q8", arguments),
            "");
  EXPECT_EQ(arguments.key_runs, (std::vector<double>{0.01, 0.5}));
  for (const std::string option :
       {"--policy full", "--prefill 10", "--every 2", "--clusters", "--selections s"}) {
    const std::string said = Refusal("--model m --text t --key-runs 0.01 " + option);
    EXPECT_NE(said.find(option.substr(0, option.find(' '))), std::string::npos) << said;
  }
  EXPECT_NE(Refusal("--trace t --key-runs 0.01").find("--trace"), std::string::npos);
}

TEST(ArgumentsTest, ValuesOutOfRangeAreNamed) {
  EXPECT_NE(Refusal("--trace t --policy full --every 0").find("--every"), std::string::npos);
  EXPECT_NE(Refusal("--trace t --policy full --rotary-pairs none").find("--rotary-pairs"),
            std::string::npos);
  const std::string said = Refusal("--trace t --policy full --json o --selections o");
  EXPECT_NE(said.find("--selections"), std::string::npos) << said;
  Arguments arguments;
  arguments.kv_format = "f8";
  EXPECT_TRUE(test::Says(ParseValues(arguments), "--kv-format f8"));
  arguments.kv_format = "f16";
  arguments.select = "much";
  EXPECT_TRUE(test::Says(ParseValues(arguments), "--select much"));
}

TEST(ArgumentsTest, OptionsReachTheReplay) {
  Arguments arguments;
  ASSERT_EQ(Refusal("--trace t --policy full,random --select 5 --select-max 199 --seed 7 --every 3 "
                    "--kv-format q8 --rotary-pairs halves",
                    arguments),
            "");
  ASSERT_TRUE(ParseValues(arguments).ok());
  const ReplayOptions options = ReplayOptionsOf(arguments);
  EXPECT_EQ(options.policies, (std::vector<std::string>{"full", "random"}));
  EXPECT_EQ(options.selection.select_percent, 5);
  EXPECT_EQ(options.selection.select_tokens_max, 199);
  EXPECT_EQ(options.selection.seed, 7U);
  EXPECT_FALSE(options.selection.select_ahead);
  EXPECT_EQ(options.recall_every, 3);
  EXPECT_EQ(options.kv_format, KvFormat::kQ8);
  EXPECT_EQ(options.rotary_pairs, compute::RotaryPairs::kHalves);
}

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(OutputFileTest, AFileIsReplacedAsAWholeOrNotAtAll) {
  const test::TempDir folder;
  const std::string path = folder.File("out");
  ASSERT_TRUE(ReplaceFile(path, "old").ok());
  {
    OutputFile file(path);
    ASSERT_TRUE(file.Open().ok());
    file.Write("new");
  }
  EXPECT_EQ(Content(path), "old");
  EXPECT_FALSE(std::ifstream(path + ".part").is_open());
  OutputFile file(path);
  ASSERT_TRUE(file.Open().ok());
  file.Write("new");
  EXPECT_EQ(Content(path), "old");
  ASSERT_TRUE(file.Commit().ok());
  EXPECT_EQ(Content(path), "new");
  EXPECT_EQ(ReplaceFile(folder.File("none/out"), "x").code(), absl::StatusCode::kNotFound);
}

TEST(OutputFileTest, AFullDiskShowsAtTheEnd) {
  const test::TempDir folder;
  const std::string path = folder.File("full");
  std::filesystem::create_symlink("/dev/full", path + ".part");
  OutputFile file(path);
  ASSERT_TRUE(file.Open().ok());
  file.Write(std::string(std::size_t{1} << 20, 'x'));
  file.Write("y");
  const absl::Status status = file.Commit();
  EXPECT_TRUE(test::Says(status, path + ".part")) << Message(status);
  EXPECT_FALSE(std::ifstream(path).is_open());
}

TEST(RunManifestTest, TicksAreThoseOfAllProcessors) {
  const auto ticks = ParseProcessorTicks("cpu  10 2 30 400 50 6 7 8 9 1");
  ASSERT_TRUE(ticks.has_value());
  EXPECT_EQ(ticks->all, 513);
  EXPECT_EQ(ticks->busy, 63);
  EXPECT_FALSE(ParseProcessorTicks("cpu0 10 2 30 400 50 6 7 8 9 1").has_value());
  EXPECT_FALSE(ParseProcessorTicks("cpu 10 2 30").has_value());
  EXPECT_FALSE(ParseProcessorTicks("").has_value());
}

TEST(RunManifestTest, WhatOthersTookIsLessOfWhatItTookItself) {
  const ProcessorTicks start{.busy = 100, .all = 1000};
  const ProcessorTicks end{.busy = 250, .all = 1300};
  EXPECT_EQ(OtherShare(start, end, 90), 0.2);
  EXPECT_EQ(OtherShare(start, end, 151), 0);
  EXPECT_EQ(OtherShare(start, end, 149), 0.0033);
  EXPECT_EQ(OtherShare(start, start, 0), std::nullopt);
}

TEST(RunManifestTest, SaysWhatCanBeSaidOfTheRun) {
  const RunManifest manifest({.version = "1.2", .commit = "abc+", .command_line = {"eval", "x"}});
  const nlohmann::ordered_json json = manifest.ToJson();
  EXPECT_EQ(json.at("version"), "1.2");
  EXPECT_EQ(json.at("commit"), "abc+");
  EXPECT_EQ(json.at("command_line").at(1), "x");
  EXPECT_EQ(json.at("start_time").get<std::string>().size(), 20U);
  const nlohmann::ordered_json& contention = json.at("contention");
  EXPECT_EQ(contention.at("load_average_start").size(), 3U);
  EXPECT_EQ(contention.at("load_average_end").size(), 3U);
  EXPECT_TRUE(contention.contains("other_cpu_share"));
}

}  // namespace
}  // namespace cairn::eval
