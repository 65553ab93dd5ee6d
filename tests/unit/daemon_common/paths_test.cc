#include "common/daemon/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "common/rpc/unix_socket.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

TEST(PathsTest, DefaultsFollowTheEnvironment) {
  const Environment session{"/home/u", "/state", "/run/user/7", false};
  EXPECT_EQ(DefaultStateDir(session), "/state/cairn");
  EXPECT_EQ(DefaultSocketPath(session, "a.sock"), "/run/user/7/cairn/a.sock");
  const Environment user{"/home/u", "", "", false};
  EXPECT_EQ(DefaultSocketPath(user, "a.sock"), "/home/u/.local/state/cairn/a.sock");
  const Environment root{"/root", "/state", "", true};
  EXPECT_EQ(DefaultStateDir(root), "/var/lib/cairn");
  EXPECT_EQ(DefaultSocketPath(root, "a.sock"), "/run/cairn/a.sock");
}

TEST(PathsTest, ADaemonThatServesElsewhereIsFound) {
  const test::TempDir folder;
  const std::string state = folder.File("state");
  ASSERT_TRUE(MakeDirectory(state + "/cairn", "a test").ok());
  const std::string name = fmt::format("test-{}.sock", ::getpid());
  const Environment session{"/home/u", state, folder.path(), false};
  const std::string elsewhere = state + "/cairn/" + name;
  EXPECT_EQ(ServedElsewhere(session, "/none", name), "");
  {
    const absl::StatusOr<UniqueFd> socket = rpc::ListenOnSocket(elsewhere, 0600);
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_EQ(ServedElsewhere(session, "/none", name), elsewhere);
    EXPECT_EQ(ServedElsewhere(session, elsewhere, name), "");
  }
  // Its file is still there.
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_EQ(ServedElsewhere(session, "/none", name), "");
}

TEST(PathsTest, WhatOthersMayChangeIsNotPrivate) {
  const test::TempDir folder;
  const std::string file = folder.File("f");
  EXPECT_TRUE(CheckPrivate(file).ok());  // not there
  std::ofstream(file) << "x";
  for (const std::string& path : {folder.path(), file}) {
    for (const mode_t mode : {0777U, 0770U, 0702U, 0720U}) {
      ASSERT_EQ(::chmod(path.c_str(), mode), 0);
      const absl::Status status = CheckPrivate(path);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_NE(Message(status).find("chmod go-w " + path), std::string::npos) << status;
    }
    for (const mode_t mode : {0700U, 0755U, 0744U}) {
      ASSERT_EQ(::chmod(path.c_str(), mode), 0);
      EXPECT_TRUE(CheckPrivate(path).ok()) << path << " " << mode;
    }
  }
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  for (const std::string& path : {file, folder.path()}) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_NE(Message(CheckPrivate(path)).find("belongs to user 65534"), std::string::npos);
  }
}

TEST(PathsTest, LogIsAFileOnATerminalOnly) {
  const Environment user{"/home/u", "", "/run/user/7", false};
  const Environment root{"/root", "", "", true};
  EXPECT_EQ(LogFile("auto", "node", false, user), "");
  EXPECT_EQ(LogFile("auto", "node", true, user), "/home/u/.local/state/cairn/node.log");
  EXPECT_EQ(LogFile("auto", "node", true, root), "/var/log/cairn/node.log");
  EXPECT_EQ(LogFile("stderr", "node", true, user), "");
  EXPECT_EQ(LogFile("/a/b.log", "node", false, user), "/a/b.log");
}

TEST(PathsTest, LogKeysAreNamed) {
  EXPECT_TRUE(CheckLogKeys("auto", "info").ok());
  EXPECT_EQ(Message(CheckLogKeys("", "info")),
            "log_path is empty: it must be a file, stderr or auto");
  EXPECT_EQ(Message(CheckLogKeys("auto", "loud")),
            "log_level is 'loud': it must be trace, debug, info, warn or error");
}

TEST(PathsTest, SocketKeysAreNamed) {
  EXPECT_TRUE(CheckSocketKeys("/run/a.sock", 0777).ok());
  EXPECT_EQ(Message(CheckSocketKeys("/run/a.sock", 01000)),
            "socket_mode is 01000: it must be 0 to 0777, with the 0 in front");
  EXPECT_EQ(Message(CheckSocketKeys("a.sock", 0600)).find("socket_path: "), 0U);
}

TEST(PathsTest, DirectoryIsMadeWithThoseAboveIt) {
  const test::TempDir directory;
  const std::string path = directory.File("a/b/c.sock");
  EXPECT_TRUE(MakeSocketDirectory(path).ok());
  EXPECT_TRUE(MakeSocketDirectory(path).ok());
  EXPECT_TRUE(std::filesystem::is_directory(directory.File("a/b")));
}

TEST(PathsTest, FileInPlaceOfTheDirectoryIsNamedWithItsKey) {
  const test::TempDir directory;
  std::ofstream(directory.File("file")) << "x";
  for (const std::string& path : {directory.File("file"), directory.File("file/below")}) {
    const std::string message = Message(MakeDirectory(path, "data_dir"));
    EXPECT_NE(message.find(path + " (data_dir)"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace cairn
