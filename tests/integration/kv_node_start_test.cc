// Starts that fail: one line says what is wrong with which object and what to do; exit code 1. And
// the flags that only print.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "kv-node/daemon/config.h"
#include "tests/integration/kv_node_process.h"

namespace cairn::test {
namespace {

namespace fs = std::filesystem;

// Runs until it ends by itself.
struct Ended {
  int code = -1;
  std::string output;
};
Ended RunToEnd(const std::vector<std::string>& argv,
               const std::vector<std::string>& environment = {}) {
  Process process(argv, environment);
  const auto code = process.Wait();
  EXPECT_TRUE(code.ok()) << code.status();
  return {code.value_or(-1), process.output()};
}

// The last line is what a user reads.
std::string LastLine(const std::string& output) {
  const std::size_t end = output.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = output.rfind('\n', end);
  return output.substr(before == std::string::npos ? 0 : before + 1, end + 1);
}

class KvNodeStartTest : public testing::Test {
 protected:
  // Expects a start to fail with exit code 1 and all of `texts` in the last line.
  static void ExpectRefused(const KvNodeProcess& node, const std::vector<std::string>& texts) {
    const Ended ended = RunToEnd(node.Command());
    EXPECT_EQ(ended.code, 1) << ended.output;
    const std::string line = LastLine(ended.output);
    EXPECT_EQ(line.find("cairn-kv-node cannot start: "), 0U) << ended.output;
    for (const std::string& text : texts) {
      EXPECT_NE(line.find(text), std::string::npos) << "no \"" << text << "\" in: " << line;
    }
  }
  void MakeStore() {
    ASSERT_TRUE(node_.Start().ok());
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  }
  std::string ExtentFile() const { return node_.data_dir() + "/extents.cairn"; }

  KvNodeProcess node_;
};

TEST_F(KvNodeStartTest, BusyDirectoryIsRefusedAndItsOwnerGoesOn) {
  ASSERT_TRUE(node_.Start().ok());
  KvNodeProcess other;
  other.SetConfig("data_dir", '"' + node_.data_dir() + '"');
  ExpectRefused(other, {node_.data_dir(), "another cairn-kv-node"});
  EXPECT_TRUE(compute::GrpcKvNode::Connect(node_.socket_path(), {}).ok());
}

TEST_F(KvNodeStartTest, SocketThatIsTakenIsRefusedAndItsOwnerGoesOn) {
  ASSERT_TRUE(node_.Start().ok());
  KvNodeProcess other;
  other.SetConfig("socket_path", '"' + node_.socket_path() + '"');
  ExpectRefused(other, {node_.socket_path(), "taken"});
  EXPECT_TRUE(compute::GrpcKvNode::Connect(node_.socket_path(), {}).ok());
}

TEST_F(KvNodeStartTest, SocketOfAKilledNodeIsReplaced) {
  ASSERT_TRUE(node_.Start().ok());
  node_.Kill();
  ASSERT_TRUE(fs::exists(node_.socket_path()));
  EXPECT_TRUE(node_.Start().ok());
}

TEST_F(KvNodeStartTest, SocketPathThatIsTooLongIsRefused) {
  node_.SetConfig("socket_path", "\"/" + std::string(120, 'x') + "/kv.sock\"");
  ExpectRefused(node_, {"129 bytes", "shorter directory"});
}

TEST_F(KvNodeStartTest, FileInPlaceOfTheSocketIsLeftAlone) {
  std::ofstream(node_.socket_path()) << "precious";
  ExpectRefused(node_, {node_.socket_path(), "not a socket"});
  EXPECT_EQ(fs::file_size(node_.socket_path()), 8U);
}

TEST_F(KvNodeStartTest, ExtentFileOfAnotherStoreIsRefused) {
  MakeStore();
  KvNodeProcess other;
  ASSERT_TRUE(other.Start().ok());
  ASSERT_EQ(other.Stop().value_or(-1), 0);
  fs::remove(ExtentFile());
  fs::copy_file(other.data_dir() + "/extents.cairn", ExtentFile());
  ExpectRefused(node_, {ExtentFile(), "store"});
}

TEST_F(KvNodeStartTest, TruncatedExtentFileIsRefused) {
  MakeStore();
  fs::resize_file(ExtentFile(), 1 << 20);
  ExpectRefused(node_, {ExtentFile()});
}

TEST_F(KvNodeStartTest, DamagedSuperblocksAreRefused) {
  MakeStore();
  std::fstream file(ExtentFile(), std::ios::in | std::ios::out | std::ios::binary);
  for (const int page : {0, 1}) {
    file.seekp(page * 4096 + 40);
    file.write("damage", 6);
  }
  file.close();
  ExpectRefused(node_, {ExtentFile(), "superblock"});
}

TEST_F(KvNodeStartTest, OneDamagedSuperblockIsRepaired) {
  MakeStore();
  std::fstream file(ExtentFile(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 40);
  file.write("damage", 6);
  file.close();
  EXPECT_TRUE(node_.Start().ok());
}

TEST_F(KvNodeStartTest, MetadataWithoutItsExtentFileIsRefused) {
  MakeStore();
  fs::remove(ExtentFile());
  ExpectRefused(node_, {node_.data_dir(), "extents.cairn", "put the file back"});
  EXPECT_FALSE(fs::exists(ExtentFile()));
}

TEST_F(KvNodeStartTest, DataDirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(node_.directory() + "/file") << "x";
  node_.SetConfig("data_dir", '"' + node_.directory() + "/file/store\"");
  ExpectRefused(node_, {"/file/store", "data_dir"});
}

TEST_F(KvNodeStartTest, UnknownKeyNamesFileAndLine) {
  node_.SetConfig("extent_bytes", "5");
  const std::string path = node_.directory() + "/kv.conf";
  ExpectRefused(node_, {path + ":6:", "extent_bytes"});
}

TEST_F(KvNodeStartTest, ValueOutOfItsRangeNamesTheKey) {
  node_.SetConfig("queue_depth", "0");
  ExpectRefused(node_, {"queue_depth is 0", "1 to 4096"});
  node_.SetConfig("queue_depth", "32");
  node_.SetConfig("io_engine", "\"fast\"");
  ExpectRefused(node_, {"io_engine", "fast"});
  node_.SetConfig("io_engine", "\"auto\"");
  node_.SetConfig("log_level", "\"loud\"");
  ExpectRefused(node_, {"log level 'loud'"});
}

TEST_F(KvNodeStartTest, BadFlagsAreNamed) {
  const std::string program = BinaryPath("cairn-kv-node");
  for (const auto& [arguments, text] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--frobnicate"}, "--frobnicate"},
           {{"--config"}, "--config needs a value"},
           {{"--socket="}, "--socket needs a value"},
           {{"--config", "/does/not/exist"}, "/does/not/exist"},
           {{"--data-dir", "relative"}, "relative"},
           {{"--data-dir", "/a", "--data-dir=/b"}, "twice"}}) {
    std::vector<std::string> argv = {program};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const Ended ended = RunToEnd(argv);
    EXPECT_EQ(ended.code, 1);
    EXPECT_NE(ended.output.find(text), std::string::npos) << ended.output;
  }
}

TEST_F(KvNodeStartTest, PrintConfigShowsWhatWouldBeUsedAndCanBeReadAgain) {
  const std::string program = BinaryPath("cairn-kv-node");
  node_.SetConfig("socket_mode", "0660");
  std::vector<std::string> argv = node_.Command();
  argv.insert(argv.end(), {"--print-config", "--log-level", "debug"});
  const Ended printed = RunToEnd(argv);
  EXPECT_EQ(printed.code, 0);
  for (const std::string& line :
       {"data_dir: \"" + node_.data_dir() + "\"", std::string("socket_mode: 0660"),
        std::string("extent_file_bytes: 33554432"), std::string("log_level: \"debug\""),
        std::string("queue_depth: 32")}) {
    EXPECT_NE(printed.output.find(line + "\n"), std::string::npos) << line;
  }
  const std::string path = node_.directory() + "/printed.conf";
  std::ofstream(path) << printed.output;
  EXPECT_EQ(RunToEnd({program, "--config", path, "--print-config"}).output, printed.output);
}

TEST_F(KvNodeStartTest, DefaultConfigHasEveryKeyAndIsWhatIsUsedWithoutAFile) {
  const std::string program = BinaryPath("cairn-kv-node");
  const Ended printed = RunToEnd({program, "--print-default-config"});
  EXPECT_EQ(printed.code, 0);
  const auto* descriptor = kv::KvNodeConfig::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    EXPECT_NE(printed.output.find("\n" + descriptor->field(i)->name() + ": "), std::string::npos)
        << descriptor->field(i)->name();
  }
  const std::string path = node_.directory() + "/default.conf";
  std::ofstream(path) << printed.output;
  EXPECT_EQ(RunToEnd({program, "--config", path, "--print-config"}).output,
            RunToEnd({program, "--print-config"}).output);
}

TEST_F(KvNodeStartTest, DefaultsFollowTheEnvironment) {
  const kv::Environment user{"/home/u", "", "/run/user/7", false};
  EXPECT_EQ(kv::DefaultConfig(user).data_dir(), "/home/u/.local/state/cairn");
  EXPECT_EQ(kv::DefaultConfig(user).socket_path(), "/run/user/7/cairn/kv.sock");
  const kv::Environment state{"/home/u", "/state", "", false};
  EXPECT_EQ(kv::DefaultConfig(state).data_dir(), "/state/cairn");
  EXPECT_EQ(kv::DefaultConfig(state).socket_path(), "/state/cairn/kv.sock");
  const kv::Environment root{"/root", "", "", true};
  EXPECT_EQ(kv::DefaultConfig(root).data_dir(), "/var/lib/cairn");
  EXPECT_EQ(kv::DefaultConfig(root).socket_path(), "/run/cairn/kv.sock");
}

TEST_F(KvNodeStartTest, VersionAndHelpEndWithZero) {
  const std::string program = BinaryPath("cairn-kv-node");
  const Ended version = RunToEnd({program, "--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_NE(version.output.find("store format 1"), std::string::npos);
  const Ended help = RunToEnd({program, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.output.find("--print-default-config"), std::string::npos);
}

}  // namespace
}  // namespace cairn::test
