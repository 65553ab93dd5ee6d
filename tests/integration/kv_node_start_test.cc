// Starts that fail: one line says what is wrong with which object and what to do; exit code 1, or 2
// where the command line or the configuration is wrong. And the flags that only print.
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/thread.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/start_progress.h"
#include "kv-node/layout/extent_file.h"
#include "tests/integration/kv_node_start_fixture.h"

namespace cairn::test {
namespace {

TEST(StartProgressTest, WhoLooksOnIsToldHowFarAStepIs) {
  const std::atomic<int> no_signal{0};
  std::vector<std::string> shown;
  const auto show = [&shown](const std::string& text) { shown.push_back(text); };
  const std::int64_t mib = 1 << 20;
  const kv::StartProgress each(no_signal, show, std::chrono::milliseconds(0));
  ASSERT_TRUE(each.Of(kv::kPrefillStep, "/s")(420 * mib, 1024 * mib).ok());
  ASSERT_TRUE(each.Of(kv::kMoveStep, "/s")(1 * mib, 2 * mib).ok());
  EXPECT_EQ(shown, (std::vector<std::string>{"writing its store, 420 of 1024 MiB",
                                             "moving its store, 1 of 2 MiB"}));
  const kv::StartProgress never(no_signal, show, std::chrono::hours(1));
  ASSERT_TRUE(never.Of(kv::kPrefillStep, "/s")(mib, mib).ok());
  EXPECT_EQ(shown.size(), 2U);
}

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
  ExpectRefused(node_, {"129 bytes", "shorter directory"}, 2);
}

// As `ulimit -f` sets it: the daemon gets a signal for what it writes beyond.
TEST_F(KvNodeStartTest, AFileSizeLimitIsSaid) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = rlim_t{16} << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ExpectRefused(node_, {"file size limit (ulimit -f)"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(node_.Start().ok());
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
  ExpectRefusedAndUntouched({ExtentFile(), "belongs to another store"});
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

TEST_F(KvNodeStartTest, StoppedStoreDoesNotNeedItsMetadataLog) {
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  for (const fs::path& log : MetaFiles(".log")) {
    EXPECT_EQ(fs::file_size(log), 0U) << log;
    fs::remove(log);
  }
  ExpectConversation();
}

TEST_F(KvNodeStartTest, DamagedMetadataLogOfAStoppedStoreIsHarmless) {
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  for (const fs::path& log : MetaFiles(".log")) std::ofstream(log) << std::string(5000, 'g');
  ExpectConversation();
}

TEST_F(KvNodeStartTest, MissingMetadataIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  const fs::path aside = node_.directory() + "/aside";
  fs::rename(MetaDirectory(), aside);
  ExpectRefusedAndUntouched(
      {MetaDirectory(), ExtentFile(), "missing", "backup", "another data_dir"});
  EXPECT_FALSE(fs::exists(MetaDirectory()));
  fs::create_directory(MetaDirectory());
  ExpectRefusedAndUntouched(
      {MetaDirectory(), ExtentFile(), "missing", "backup", "another data_dir"});
  fs::remove(MetaDirectory());
  fs::rename(aside, MetaDirectory());
  ExpectConversation();
}

TEST_F(KvNodeStartTest, TruncatedManifestIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  const fs::path manifest = MetaFiles("MANIFEST").front();
  const fs::path whole = node_.directory() + "/whole";
  fs::copy_file(manifest, whole);
  const auto size = fs::file_size(manifest);
  for (const auto length : {std::uintmax_t{0}, size / 2, size - 1}) {
    fs::resize_file(manifest, length);
    ExpectRefusedAndUntouched({MetaDirectory(), ExtentFile(), "restore both"});
  }
  fs::copy_file(whole, manifest, fs::copy_options::overwrite_existing);
  ExpectConversation();
}

TEST_F(KvNodeStartTest, OlderMetadataIsRefused) {
  MakeStore();
  const fs::path aside = node_.directory() + "/aside";
  fs::copy(MetaDirectory(), aside, fs::copy_options::recursive);
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  fs::remove_all(MetaDirectory());
  fs::rename(aside, MetaDirectory());
  ExpectRefusedAndUntouched({MetaDirectory(), ExtentFile(), "is older than", "ends with change"});
}

TEST_F(KvNodeStartTest, KilledStoreOpensWithWhatWasAcknowledged) {
  ASSERT_TRUE(node_.Start().ok());
  ASSERT_NO_FATAL_FAILURE(Converse());
  node_.Kill();
  ExpectConversation();
  node_.Kill();
  ExpectConversation();
}

TEST_F(KvNodeStartTest, LogOfAKilledStoreThatIsGoneIsNoticed) {
  ASSERT_TRUE(node_.Start().ok());
  ASSERT_NO_FATAL_FAILURE(Converse());
  node_.Kill();
  for (const fs::path& log : MetaFiles(".log")) fs::remove(log);
  ExpectRefusedAndUntouched({MetaDirectory(), ExtentFile(), "restore both"});
}

// Each of these lines of the log is a point at which to die.
TEST_F(KvNodeStartTest, FirstStartThatIsKilledAnywhereCanBeRepeated) {
  for (const char* line : {"create file=", "extent file created", "engine sessions=", "serving "}) {
    SCOPED_TRACE(line);
    fs::remove_all(node_.data_dir());
    {
      Process process(node_.Command(), {});
      ASSERT_TRUE(process.WaitForLine(line).ok()) << process.output();
      process.Kill();
    }
    ASSERT_NO_FATAL_FAILURE(MakeConversation());
    ExpectConversation();
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  }
}

TEST_F(KvNodeStartTest, ExtentFileThatNeverHadMetadataIsANewStore) {
  fs::create_directory(node_.data_dir());
  ASSERT_TRUE(kv::ExtentFile::Create({.directory = node_.data_dir()},
                                     {.size_bytes = 32 << 20, .prefill = false})
                  .ok());
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  ExpectConversation();
}

TEST_F(KvNodeStartTest, AStoreThatOthersMayChangeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeStore());
  for (const std::string& path : {node_.data_dir(), ExtentFile(), MetaDirectory()}) {
    const fs::perms before = fs::status(path).permissions();
    fs::permissions(path, fs::perms::all);
    ExpectRefused(node_, {path, "mode 0777", "chmod go-w"});
    fs::permissions(path, before);
  }
  ASSERT_NO_FATAL_FAILURE(MakeStore());
}

TEST_F(KvNodeStartTest, DataDirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(node_.directory() + "/file") << "x";
  node_.SetConfig("data_dir", '"' + node_.directory() + "/file/store\"");
  ExpectRefused(node_, {"/file/store", "data_dir"});
}

TEST_F(KvNodeStartTest, UnknownKeyNamesFileAndLine) {
  node_.SetConfig("extent_bytes", "5");
  const std::string place =
      fmt::format("{}/kv.conf:{}:", node_.directory(), node_.config_line_count());
  ExpectRefused(node_, {place, "extent_bytes"}, 2);
}

TEST_F(KvNodeStartTest, ValueOutOfItsRangeNamesTheKey) {
  node_.SetConfig("experiment", "{ queue_depth: -1 }");
  ExpectRefused(node_, {"queue_depth is -1", "0 to 4096"}, 2);
  node_.SetConfig("experiment", "{ queue_depth: 32 }");
  node_.SetConfig("io_engine", "\"fast\"");
  ExpectRefused(node_, {"io_engine", "fast"}, 2);
  node_.SetConfig("io_engine", "\"auto\"");
  node_.SetConfig("experiment", "{ device_profile: \"nvme\" }");
  ExpectRefused(node_, {"device_profile", "nvme", "ufs3.1"}, 2);
  node_.SetConfig("experiment", "{ merge_gap_bytes: 262145 }");
  ExpectRefused(node_, {"merge_gap_bytes is 262145", "-1 to 262144"}, 2);
  node_.SetConfig("experiment", "{ place_entries_min_count: 0 }");
  ExpectRefused(node_, {"place_entries_min_count is 0", "1 to 65536"}, 2);
  node_.SetConfig("experiment", "{ place_entries_min_count: 64 }");
  node_.SetConfig("realtime_priority", "100");
  ExpectRefused(node_, {"realtime_priority is 100", "0 to 99"}, 2);
  node_.SetConfig("realtime_priority", "0");
  node_.SetConfig("log_level", "\"loud\"");
  ExpectRefused(node_, {".conf:", "log_level is 'loud'", "trace, debug"}, 2);
  node_.SetConfig("log_level", "\"info\"");
  node_.SetConfig("log_path", "\"\"");
  ExpectRefused(node_, {".conf:", "log_path is empty"}, 2);
}

TEST_F(KvNodeStartTest, RealtimePriorityIsOfTheThreadsThatServe) {
  node_.SetConfig("realtime_priority", "1");
  if (!ServingPriority(1).status().ok()) {
    ExpectRefused(node_, {"realtime_priority", "1"});
    GTEST_SKIP() << "no realtime priorities here";
  }
  ASSERT_TRUE(node_.Start().ok());
  std::map<std::string, int> policies;  // by the thread's name
  for (const auto& thread :
       fs::directory_iterator(fmt::format("/proc/{}/task", node_.process().pid()))) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    std::getline(file, name);
    policies[name] = sched_getscheduler(std::stoi(thread.path().filename().string()));
  }
  EXPECT_EQ(policies.at("kv-engine"), SCHED_RR);
  EXPECT_EQ(policies.at("kv-handshake"), SCHED_RR);
  EXPECT_EQ(policies.at("kv-meta"), SCHED_OTHER);
  EXPECT_EQ(node_.Stop().value_or(-1), 0);
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
    EXPECT_EQ(ended.code, 2);
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
        std::string("  queue_depth: 0")}) {
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
  std::set<std::string> printed_keys;
  std::istringstream lines(printed.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    if (words >> key) printed_keys.insert(key.substr(0, key.find(':')));
  }
  for (const auto* keys :
       {kv::KvNodeConfig::descriptor(), config::v1::KvNodeExperiment::descriptor()}) {
    for (int i = 0; i < keys->field_count(); ++i) {
      EXPECT_EQ(printed_keys.count(keys->field(i)->name()), 1U) << keys->field(i)->name();
    }
  }
  const std::string path = node_.directory() + "/default.conf";
  std::ofstream(path) << printed.output;
  EXPECT_EQ(RunToEnd({program, "--config", path, "--print-config"}).output,
            RunToEnd({program, "--print-config"}).output);
}

TEST_F(KvNodeStartTest, DefragmentationIsOffWithABatteryOrAPhonesFlash) {
  const fs::path supplies = fs::path(node_.directory()) / "supplies";
  const auto supply = [&](const std::string& name, const std::string& file,
                          const std::string& content) {
    fs::create_directories(supplies / name);
    std::ofstream(supplies / name / file) << content << "\n";
  };
  kv::KvNodeConfig config = kv::DefaultConfig({"/home/u", "", "", false});
  const auto defragments = [&] { return kv::Defragments(config, supplies.string()); };
  EXPECT_TRUE(defragments());  // there is no such folder
  supply("AC", "type", "Mains");
  supply("mouse", "type", "Battery");
  supply("mouse", "scope", "Device");
  EXPECT_TRUE(defragments());
  config.mutable_experiment()->set_device_profile("ufs40");
  EXPECT_FALSE(defragments());
  config.mutable_experiment()->set_device_profile("none");
  supply("BAT0", "type", "Battery");
  EXPECT_FALSE(defragments());
  config.set_defragment("on");
  EXPECT_TRUE(defragments());
  fs::remove_all(supplies);
  config.set_defragment("off");
  EXPECT_FALSE(defragments());
}

TEST_F(KvNodeStartTest, DefaultsFollowTheEnvironment) {
  const Environment user{"/home/u", "", "/run/user/7", false};
  EXPECT_EQ(kv::DefaultConfig(user).data_dir(), "/home/u/.local/state/cairn");
  EXPECT_EQ(kv::DefaultConfig(user).socket_path(), "/run/user/7/cairn/kv.sock");
  const Environment state{"/home/u", "/state", "", false};
  EXPECT_EQ(kv::DefaultConfig(state).data_dir(), "/state/cairn");
  EXPECT_EQ(kv::DefaultConfig(state).socket_path(), "/state/cairn/kv.sock");
  const Environment root{"/root", "", "", true};
  EXPECT_EQ(kv::DefaultConfig(root).data_dir(), "/var/lib/cairn");
  EXPECT_EQ(kv::DefaultConfig(root).socket_path(), "/run/cairn/kv.sock");
}

TEST_F(KvNodeStartTest, VersionAndHelpEndWithZero) {
  const std::string program = BinaryPath("cairn-kv-node");
  const Ended version = RunToEnd({program, "--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_NE(version.output.find("store format 4"), std::string::npos);
  const Ended help = RunToEnd({program, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.output.find("--print-default-config"), std::string::npos);
}

}  // namespace
}  // namespace cairn::test
