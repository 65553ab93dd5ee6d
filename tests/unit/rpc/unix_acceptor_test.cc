#include "common/rpc/unix_acceptor.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/mutex.h"
#include "common/io/open_files.h"
#include "tests/tools/descriptors_left.h"
#include "tests/tools/temp_dir.h"

namespace cairn::rpc {
namespace {

constexpr std::chrono::minutes kLong{1};

class UnixAcceptorTest : public testing::Test {
 protected:
  void Start(UnixAcceptorOptions options) {
    options.socket_path = Path();
    absl::StatusOr<std::unique_ptr<UnixAcceptor>> acceptor =
        UnixAcceptor::Start(std::move(options), [this](UniqueFd connection) {
          MutexLock lock(mutex_);
          taken_.push_back(std::move(connection));
          changed_.NotifyAll();
        });
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
  }
  std::string Path() const { return directory_.File("s"); }
  UniqueFd Connect() {
    absl::StatusOr<UniqueFd> socket = ConnectToSocket(Path(), kLong);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }
  // For a socket that is there already: making one takes a descriptor.
  void ConnectAs(const UniqueFd& socket) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    Path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
  }
  static void Say(const UniqueFd& socket) { ASSERT_EQ(::send(socket.get(), "x", 1, 0), 1); }
  UniqueFd ConnectAndSay() {
    UniqueFd socket = Connect();
    Say(socket);
    return socket;
  }
  // Whether so many were handed on.
  bool WaitForTaken(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    MutexLock lock(mutex_);
    while (taken_.size() < count && changed_.WaitUntil(mutex_, deadline)) {
    }
    return taken_.size() == count;
  }
  static bool IsClosed(const UniqueFd& socket) {
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, 0) == 0;
  }

  cairn::test::TempDir directory_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> taken_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<UnixAcceptor> acceptor_;
};

TEST_F(UnixAcceptorTest, WhoSpeaksIsHandedOnWithAllThatItSaid) {
  Start({});
  const UniqueFd client = ConnectAndSay();
  ASSERT_TRUE(WaitForTaken(1));
  char byte = 0;
  MutexLock lock(mutex_);
  EXPECT_EQ(::recv(taken_.front().get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(UnixAcceptorTest, ASilentConnectionEndsWhenItsTimeIsUp) {
  Start({.silent_time_max = std::chrono::milliseconds(1)});
  EXPECT_TRUE(IsClosed(Connect()));
}

TEST_F(UnixAcceptorTest, TheOldestSilentConnectionGivesItsPlaceToANewOne) {
  Start({.silent_count_max = 3, .silent_time_max = kLong});
  std::vector<UniqueFd> silent;
  silent.reserve(50);
  for (int i = 0; i < 50; ++i) silent.push_back(Connect());
  const UniqueFd client = ConnectAndSay();
  EXPECT_TRUE(WaitForTaken(1));
  for (std::size_t i = 0; i < 46; ++i) EXPECT_TRUE(IsClosed(silent[i])) << i;
  Say(silent.back());
  EXPECT_TRUE(WaitForTaken(2));
}

TEST_F(UnixAcceptorTest, BeyondTheMostConnectionsOthersWaitUntilOneEnds) {
  Start({.connection_count_max = 2});
  std::vector<UniqueFd> clients;
  clients.reserve(5);
  for (int i = 0; i < 2; ++i) clients.push_back(ConnectAndSay());
  ASSERT_TRUE(WaitForTaken(2));
  for (int i = 0; i < 3; ++i) clients.push_back(ConnectAndSay());
  for (int i = 0; i < 3; ++i) {
    {
      MutexLock lock(mutex_);
      ASSERT_EQ(taken_.size(), 2U);
      taken_.pop_back();  // whoever has it closes it
    }
    EXPECT_TRUE(WaitForTaken(2)) << i;
  }
}

TEST_F(UnixAcceptorTest, WithoutDescriptorsItWaitsAndThenGoesOn) {
  Start({});
  const UniqueFd first = ConnectAndSay();
  ASSERT_TRUE(WaitForTaken(1));
  UniqueFd second(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Of descriptors that are there nothing changes, but no more are given.
  auto none = std::make_unique<cairn::test::DescriptorsLeft>(0);
  ConnectAs(second);
  Say(second);
  none.reset();
  EXPECT_TRUE(WaitForTaken(2));
}

TEST_F(UnixAcceptorTest, ClientsDoNotTakeTheDescriptorsOfTheDaemonItself) {
  Start({.silent_time_max = kLong});
  const UniqueFd silent = Connect();
  const timeval time_max = {std::chrono::seconds(kLong).count(), 0};
  ASSERT_EQ(::setsockopt(silent.get(), SOL_SOCKET, SO_RCVTIMEO, &time_max, sizeof(time_max)), 0);
  const UniqueFd first = ConnectAndSay();
  ASSERT_TRUE(WaitForTaken(1));  // and so the silent one was accepted
  UniqueFd second(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const cairn::test::DescriptorsLeft own(kOpenFilesReserved);
  ConnectAs(second);
  Say(second);
  EXPECT_TRUE(IsClosed(silent));
  EXPECT_TRUE(WaitForTaken(2));
}

TEST_F(UnixAcceptorTest, TheSocketIsTakenOnceAndGoneAtTheEnd) {
  Start({.socket_mode = 0640});
  struct stat info {};
  ASSERT_EQ(::stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640U);
  EXPECT_EQ(UnixAcceptor::Start({.socket_path = Path()}, [](UniqueFd) {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  acceptor_.reset();
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

}  // namespace
}  // namespace cairn::rpc
