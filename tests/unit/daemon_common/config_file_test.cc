#include "common/daemon/config_file.h"

#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cairn/config/v1/compute_node.descriptor.h"
#include "cairn/config/v1/compute_node.pb.h"
#include "cairn/config/v1/kv_node.pb.h"
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
           {"recluster_prompts: 3", "recluster_prompts must be true or false;"},
           {"experiment { keep_clusters: 3 }",
            ":1:29: Integer out of range (3): keep_clusters must"},
           {"recluster_prompts: yes", "recluster_prompts must be true or false;"},
           {"experiment: 3", "experiment must be keys in braces;"},
           {"experiment", "experiment must be keys in braces;"},
           {"\tthreads: x\nkv: 3", ":1:11: Expected integer, got: x: threads must be"},
           {"kv: \"ram\" threads: x", "threads must be a whole number;"},
           {"http_listen: \"127.0.0.1:8080\n", "http_listen must be a text in quotes;"},
           {"turn_stop: [\"threads: \", 3]", "turn_stop must be a text in quotes;"},
           {"threads: x # kv: y", "threads must be a whole number;"},
           {"select_percent: much", "select_percent must be a number;"},
           {"experiment {\n clustering_seed: -1\n}",
            "clustering_seed must be a whole number, not below 0;"},
           {"{", ":1:1: Expected identifier, got: {;"}}) {
    EXPECT_NE(Message(Read(text)).find(words), std::string::npos) << Message(Read(text));
  }
}

TEST_F(ConfigFileTest, WhatStandsInTheWrongPlaceIsNoValue) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"experiment { keep_clusters: true } experiment {}",
            ":1:47: experiment is here a second time: give it once, with all keys in its braces;"},
           {"threads: 1\nthreads: 2", ":2:8: threads is here a second time: give it once;"},
           {"experiment { keep_clusters: true }}", ":1:35: there is a closing brace too many;"},
           {"experiment {\n", ": the file ends, and a closing brace is missing;"}}) {
    EXPECT_NE(Message(Read(text)).find(words), std::string::npos) << Message(Read(text));
  }
}

TEST_F(ConfigFileTest, KeyInTheWrongPlaceIsSaidWithItsPlace) {
  EXPECT_EQ(Message(Read("threads: 3\nselect_ahead: true\n")),
            path_ +
                ":2:1: there is no key select_ahead: write experiment { select_ahead: ... }; "
                "--print-default-config shows every key");
  EXPECT_EQ(Message(Read("experiment {\n  threads: 3\n}\n")),
            path_ +
                ":2:3: there is no key threads: it stands outside of braces; "
                "--print-default-config shows every key");
  EXPECT_NE(Message(Read("experiment { slect_ahead: true }")).find("did you mean select_ahead?"),
            std::string::npos);
}

TEST_F(ConfigFileTest, GroupIsReadAndItsKeysHavePlaces) {
  config_.mutable_experiment()->set_window_tokens_max(64);
  ASSERT_TRUE(Read("experiment {\n  keep_clusters: false\n}\nthreads: 2\n").ok());
  EXPECT_TRUE(config_.experiment().has_keep_clusters());
  EXPECT_EQ(config_.experiment().window_tokens_max(), 64);
  EXPECT_EQ(Message(AtItsPlace(InvalidArgument("keep_clusters is odd"), places_)),
            path_ + ":2: keep_clusters is odd");
  EXPECT_EQ(Read("experiment {}\nexperiment {}\n").code(), absl::StatusCode::kInvalidArgument);
}

// As messages name a key without its group.
void ExpectNamesOnce(const google::protobuf::Descriptor& keys, std::set<std::string>& names) {
  for (int i = 0; i < keys.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& key = *keys.field(i);
    EXPECT_TRUE(names.insert(std::string(key.name())).second) << key.full_name();
    if (key.message_type() != nullptr) ExpectNamesOnce(*key.message_type(), names);
  }
}

TEST_F(ConfigFileTest, NoTwoKeysHaveOneName) {
  for (const auto* keys :
       {config::v1::ComputeNodeConfig::descriptor(), config::v1::KvNodeConfig::descriptor()}) {
    std::set<std::string> names;
    ExpectNamesOnce(*keys, names);
  }
}

TEST_F(ConfigFileTest, PrintedFileHasCommentsAndIsReadAgain) {
  config_.set_socket_mode(0640);
  EXPECT_NE(
      PrintConfigWithComments(config_, config::kComputeNodeDescriptor).find("\n# turn_stop: ...\n"),
      std::string::npos);
  config_.add_turn_stop("a\n");
  config_.mutable_experiment()->set_clustering_seed(7);
  const std::string plain = PrintConfig(config_);
  const std::string text = PrintConfigWithComments(config_, config::kComputeNodeDescriptor);
  EXPECT_NE(text.find("# The GGUF file to serve. No default: here or --model.\nmodel_path: \"\"\n"),
            std::string::npos);
  EXPECT_NE(text.find("\n\n  # Of what is random in clustering: equal seeds give equal clusters. "
                      "Default 0.\n  clustering_seed: 7\n"),
            std::string::npos);
  EXPECT_NE(plain.find("\nsocket_mode: 0640\n"), std::string::npos);
  EXPECT_EQ(plain.find('#'), std::string::npos);
  for (const std::string& printed : {plain, text}) {
    config_.Clear();
    ASSERT_TRUE(Read(printed).ok());
    EXPECT_EQ(PrintConfig(config_), plain);
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
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
