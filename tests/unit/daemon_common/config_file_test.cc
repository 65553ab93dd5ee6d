#include "common/daemon/config_file.h"

#include <fstream>

#include <gtest/gtest.h>

#include "cairn/config/v1/compute_node.pb.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

class ConfigFileTest : public testing::Test {
 protected:
  absl::Status Read(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadConfigFile(path_, config_);
  }

  const test::TempDir directory_;
  const std::string path_ = directory_.File("test.conf");
  config::v1::ComputeNodeConfig config_;
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

TEST_F(ConfigFileTest, MissingOrHugeFileIsAnError) {
  EXPECT_EQ(ReadConfigFile(path_ + ".none", config_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Read(std::string(static_cast<std::size_t>(kConfigBytesMax) + 1, '#')).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigFileTest, ADirectoryIsNoConfiguration) {
  const absl::Status status = ReadConfigFile(directory_.path(), config_);
  EXPECT_NE(Message(status).find("Is a directory"), std::string::npos) << Message(status);
}

}  // namespace
}  // namespace cairn
