#include "compute-node/http/reading_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "compute-node/http/http_socket.h"

namespace cairn::compute {
namespace {

using std::chrono::seconds;

constexpr seconds kTimeMax{10};

class ReadingClientTest : public testing::Test {
 protected:
  // After so many seconds.
  bool IsReading(std::int64_t second, std::int64_t sent_bytes, std::int64_t unread_bytes) {
    return client_.IsReading(start_ + seconds(second), sent_bytes, unread_bytes);
  }

  const ReadingClient::Clock::time_point start_ = ReadingClient::Clock::now();
  ReadingClient client_{kTimeMax};
};

TEST_F(ReadingClientTest, OneThatTakesNothingIsNoReaderWhenTheTimeIsUp) {
  EXPECT_TRUE(IsReading(0, 100, 100));
  EXPECT_TRUE(IsReading(5, 200, 200));
  EXPECT_TRUE(IsReading(9, 300, 300));
  EXPECT_FALSE(IsReading(10, 400, 400));
}

TEST_F(ReadingClientTest, OneThatReadsAndThenStopsHasItsTimeFromThenOn) {
  EXPECT_TRUE(IsReading(0, 100, 0));
  EXPECT_TRUE(IsReading(8, 200, 50));
  EXPECT_TRUE(IsReading(17, 300, 150));
  EXPECT_FALSE(IsReading(18, 400, 250));
}

TEST_F(ReadingClientTest, ASlowOneIsAReaderAsLongAsItTakesAByteInTime) {
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_TRUE(IsReading(9 * i, 1000 * (i + 1), 999 * (i + 1))) << i;
}

TEST_F(ReadingClientTest, WhereNothingWaitsNobodyHasToRead) {
  EXPECT_TRUE(IsReading(0, 100, 0));
  EXPECT_TRUE(IsReading(60, 200, 100));  // sent just now
  EXPECT_TRUE(IsReading(120, 300, 100));
  EXPECT_FALSE(IsReading(180, 400, 200));
}

// Both ends of a connection over loopback.
class Connection {
 public:
  explicit Connection(bool is_v6) {
    const int family = is_v6 ? AF_INET6 : AF_INET;
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    sockaddr_storage address{};
    socklen_t size = is_v6 ? sizeof(v6) : sizeof(v4);
    std::memcpy(&address, is_v6 ? static_cast<void*>(&v6) : &v4, size);
    const int listener = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    ok_ = ::bind(listener, generic, size) == 0 && ::listen(listener, 1) == 0 &&
          ::getsockname(listener, generic, &size) == 0;
    client_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ok_ = ok_ && ::connect(client_, generic, size) == 0;
    if (ok_) server_ = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
  }
  ~Connection() {
    ::close(client_);
    ::close(server_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool ok() const { return ok_; }
  int server() const { return server_; }
  void Send(std::size_t bytes) const {
    EXPECT_EQ(::send(server_, std::string(bytes, 'x').data(), bytes, 0),
              static_cast<ssize_t>(bytes));
  }
  void Receive(std::size_t bytes) const {
    std::string taken(bytes, '\0');
    EXPECT_EQ(::recv(client_, taken.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }

 private:
  bool ok_ = false;
  int client_ = -1;
  int server_ = -1;
};

TEST(UnreadBytesTest, WhatTheClientHasNotReadIsCounted) {
  for (const bool is_v6 : {false, true}) {
    const Connection connection(is_v6);
    if (is_v6 && !connection.ok()) continue;  // a machine without IPv6
    ASSERT_TRUE(connection.ok());
    const std::optional<std::int64_t> none = UnreadBytes(connection.server());
    if (!none.has_value()) GTEST_SKIP() << "this system has no sock_diag";
    EXPECT_EQ(none, 0);
    connection.Send(1000);
    EXPECT_EQ(UnreadBytes(connection.server()), 1000);
    connection.Receive(400);
    EXPECT_EQ(UnreadBytes(connection.server()), 600);
    connection.Send(1 << 16);
    EXPECT_EQ(UnreadBytes(connection.server()), 600 + (1 << 16));
    connection.Receive(600 + (1 << 16));
    EXPECT_EQ(UnreadBytes(connection.server()), 0);
  }
}

TEST(UnreadBytesTest, WritingEndsWhenTheClientReadsNothing) {
  const Connection connection(/*is_v6=*/false);
  ASSERT_TRUE(connection.ok());
  HttpSocket socket(connection.server(), std::chrono::milliseconds(50));
  while (socket.Write("x")) {
  }
  EXPECT_TRUE(socket.connected());
}

TEST(UnreadBytesTest, OfAnotherKindOfSocketNothingIsKnown) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(UnreadBytes(ends[0]), std::nullopt);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cairn::compute
