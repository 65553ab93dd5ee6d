#include "common/rpc/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/temp_dir.h"

namespace cairn::rpc {
namespace {

constexpr std::chrono::milliseconds kNow{0};

class UnixSocketTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.File(name); }

  cairn::test::TempDir directory_;
};

TEST_F(UnixSocketTest, PathThatIsTooLongIsRefusedWithItsLengthAndTheLimit) {
  const std::string path = "/" + std::string(120, 'x') + "/kv.sock";
  const absl::Status status = CheckSocketPath(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find(path), std::string::npos);
  EXPECT_NE(Message(status).find(std::to_string(path.size())), std::string::npos);
  EXPECT_NE(Message(status).find("shorter directory"), std::string::npos);
}

TEST_F(UnixSocketTest, LongestAllowedPathHoldsWithItsHandshakeSuffix) {
  const std::string suffix = kHandshakeSuffix;
  const std::string path =
      "/" + std::string(static_cast<std::size_t>(kSocketPathBytesMax) - suffix.size() - 1, 'x');
  EXPECT_TRUE(CheckSocketPath(path).ok());
  EXPECT_FALSE(CheckSocketPath(path + "x").ok());
}

TEST_F(UnixSocketTest, RelativePathIsRefused) {
  EXPECT_EQ(CheckSocketPath("kv.sock").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(UnixSocketTest, SocketOfALiveServerIsTaken) {
  const absl::StatusOr<UniqueFd> listener = ListenOnSocket(Path("s"), 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const absl::Status status = ClaimSocketPath(Path("s"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(Message(status).find("taken"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(Path("s")));
}

TEST_F(UnixSocketTest, SocketThatNobodyServesIsRemoved) {
  { ASSERT_TRUE(ListenOnSocket(Path("s"), 0600).ok()); }
  ASSERT_TRUE(std::filesystem::exists(Path("s")));
  EXPECT_TRUE(ClaimSocketPath(Path("s")).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("s")));
}

TEST_F(UnixSocketTest, FileThatIsNotASocketIsLeftAlone) {
  std::ofstream(Path("file")) << "precious";
  const absl::Status status = ClaimSocketPath(Path("file"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::exists(Path("file")));
}

TEST_F(UnixSocketTest, ListeningSocketHasTheModeThatWasAskedFor) {
  const absl::StatusOr<UniqueFd> listener = ListenOnSocket(Path("s"), 0640);
  ASSERT_TRUE(listener.ok());
  struct stat info {};
  ASSERT_EQ(::stat(Path("s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0640U);
}

TEST_F(UnixSocketTest, ConnectTellsAbsentFromUnserved) {
  EXPECT_EQ(ConnectToSocket(Path("none"), kNow).status().code(), absl::StatusCode::kNotFound);
  { ASSERT_TRUE(ListenOnSocket(Path("s"), 0600).ok()); }
  EXPECT_EQ(ConnectToSocket(Path("s"), kNow).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(UnixSocketTest, ServerThatAcceptsNobodyIsBusy) {
  const absl::StatusOr<UniqueFd> listener = ListenOnSocket(Path("s"), 0600);
  ASSERT_TRUE(listener.ok());
  std::vector<UniqueFd> waiting;
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<UniqueFd> connection = ConnectToSocket(Path("s"), std::chrono::milliseconds(1));
    status = connection.status();
    if (connection.ok()) waiting.push_back(*std::move(connection));
    ASSERT_LE(waiting.size(), 2U * kListenBacklog);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ClaimSocketPath(Path("s")).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace cairn::rpc
