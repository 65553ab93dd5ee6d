#include "common/daemon/config_file.h"

#include <fstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cairn/config/v1/compute_node.pb.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

class ConfigFileTest : public testing::Test {
 protected:
  absl::Status Read(const std::string& text) {
    std::ofstream(path_) << text;
    places_.clear();
    return ReadConfigFile(path_, config_, places_);
  }

  const test::TempDir directory_;
  const std::string path_ = directory_.File("test.conf");
  config::v1::ComputeNodeConfig config_;
  ConfigPlaces places_;
};

TEST_F(ConfigFileTest, FileOverridesDefaultsAlsoWithZero) {
  config_.set_threads(4);
  config_.set_kv("node");
  ASSERT_TRUE(Read("# a comment\nthreads: 0\nturn_stop: \"a\"\nturn_stop: \"b\"\n").ok());
  EXPECT_EQ(config_.threads(), 0);
  EXPECT_TRUE(config_.has_threads());
  EXPECT_EQ(config_.kv(), "node");
  EXPECT_EQ(config_.turn_stop_size(), 2);
}

TEST_F(ConfigFileTest, MistakesNameTheLine) {
  for (const std::string text : {"kv: \"node\"\nthreds: 3\n", "kv: \"node\"\nthreads: \"three\"\n",
                                 "threads: 1\nthreads: 2\n", "kv: \"node\"\nthreads 3 3\n"}) {
    const absl::Status status = Read(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(Message(status).find(path_ + ":2:"), std::string::npos) << Message(status);
  }
}

TEST_F(ConfigFileTest, UnknownKeyIsSaidWithTheKeyThatItIsLike) {
  EXPECT_EQ(Message(Read("kv: \"node\"\nkv_socket: \"x\"\n")),
            path_ + ":2:1: there is no key kv_socket; --print-default-config shows every key");
  EXPECT_NE(Message(Read("threds: 3\n")).find("no key threds: did you mean threads?;"),
            std::string::npos);
  EXPECT_EQ(Message(Read(std::string(300, 'k') + ": 3\n")).find("did you mean"), std::string::npos);
}

TEST_F(ConfigFileTest, UnknownKeyIsSaidWhereItIsAndNotWhereTheParserIs) {
  EXPECT_EQ(Message(Read("threads: 3  # threds\n  threds\n\n\nkv: \"node\"\n")),
            path_ +
                ":2:3: there is no key threds: did you mean threads?; --print-default-config "
                "shows every key");
  EXPECT_EQ(Message(Read("threds")),
            path_ +
                ":1:1: there is no key threds: did you mean threads?; --print-default-config "
                "shows every key");
}

TEST_F(ConfigFileTest, ValueOfAnotherKindIsSaidWithWhatIsAllowed) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"kv: node", ":1:5: Expected string, got: node: kv must be a text in quotes;"},
           {"\n  threads: many",
            ":2:12: Expected integer, got: many: threads must be a whole number;"},
           {"threads: 99999999999", "(99999999999): threads must be a whole number;"},
           {"keep_clusters: 3", "keep_clusters must be true or false;"},
           {"select_percent: much", "select_percent must be a number;"},
           {"clustering_seed: -1", "clustering_seed must be a whole number, not below 0;"},
           {"{", ":1:1: Expected identifier, got: {;"}}) {
    EXPECT_NE(Message(Read(text)).find(words), std::string::npos) << Message(Read(text));
  }
}

TEST_F(ConfigFileTest, BadValueIsSaidWithTheLineOfItsKey) {
  ASSERT_TRUE(Read("# of a test\nthreads: 3\n\nturn_stop: \"a\"\nturn_stop: \"b\"\n").ok());
  const auto at_its_place = [this](const absl::Status& status) {
    return Message(AtItsPlace(status, places_));
  };
  EXPECT_EQ(at_its_place(InvalidArgument("threads is 3")), path_ + ":2: threads is 3");
  EXPECT_EQ(at_its_place(InvalidArgument("turn_stop: none")), path_ + ":4: turn_stop: none");
  EXPECT_EQ(at_its_place(InvalidArgument("kv is 'x'")), "kv is 'x'");
  EXPECT_TRUE(AtItsPlace(absl::OkStatus(), places_).ok());
}

TEST_F(ConfigFileTest, FlagOverridesTheFileAndItsPlace) {
  ASSERT_TRUE(Read("kv: \"node\"\nmodel_path: \"m\"\n").ok());
  OverrideKey("kv", std::nullopt, config_, places_);
  EXPECT_EQ(config_.kv(), "node");
  OverrideKey("kv", "tape", config_, places_);
  EXPECT_EQ(config_.kv(), "tape");
  EXPECT_EQ(Message(AtItsPlace(InvalidArgument("kv is 'tape'"), places_)), "kv is 'tape'");
  EXPECT_EQ(places_.at("model_path"), path_ + ":2");
}

TEST_F(ConfigFileTest, MissingOrHugeFileIsAnError) {
  EXPECT_EQ(ReadConfigFile(path_ + ".none", config_, places_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Read(std::string(static_cast<std::size_t>(kConfigBytesMax) + 1, '#')).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigFileTest, ADirectoryIsNoConfiguration) {
  const absl::Status status = ReadConfigFile(directory_.path(), config_, places_);
  EXPECT_NE(Message(status).find("Is a directory"), std::string::npos) << Message(status);
}

}  // namespace
}  // namespace cairn
