#include "common/rpc/handshake.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include <gtest/gtest.h>

namespace cairn::rpc {
namespace {

constexpr std::chrono::milliseconds kTimeMax{20000};

std::pair<UniqueFd, UniqueFd> Connected() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

UniqueFd MemoryOf(std::int64_t size_bytes) {
  UniqueFd fd(::memfd_create("handshake-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
  return fd;
}

absl::StatusOr<HandshakeMessage> Receive(std::string_view text) {
  auto [server, client] = Connected();
  EXPECT_EQ(::send(server.get(), text.data(), text.size(), 0), std::ssize(text));
  server = UniqueFd();
  return ReceiveHandshake(client, kTimeMax);
}

TEST(HandshakeTest, TokenAndDescriptorsArriveInTheirOrder) {
  for (const int count : {0, 1, 250}) {
    auto [server, client] = Connected();
    std::vector<UniqueFd> memory;
    std::vector<std::int32_t> ids;
    std::vector<int> descriptors;
    for (int i = 0; i < count; ++i) {
      memory.push_back(MemoryOf(1000 + i));
      ids.push_back(2000000000 + i);
      descriptors.push_back(memory.back().get());
    }
    ASSERT_TRUE(SendHandshake(server, "0123abcd", 4096, ids, descriptors).ok());
    server = UniqueFd();
    const auto message = ReceiveHandshake(client, kTimeMax);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->token, "0123abcd");
    EXPECT_EQ(message->granule_bytes, 4096);
    ASSERT_EQ(std::ssize(message->granules), count);
    for (int i = 0; i < count; ++i) {
      const HandshakeGranule& granule = message->granules[static_cast<std::size_t>(i)];
      EXPECT_EQ(granule.id, 2000000000 + i);
      struct stat info {};
      ASSERT_EQ(::fstat(granule.fd.get(), &info), 0);
      EXPECT_EQ(info.st_size, 1000 + i);
    }
  }
}

TEST(HandshakeTest, AServerThatEndsBeforeItTakesTheConnectionIsAway) {
  auto [server, client] = Connected();
  // The kernel resets a connection whose other side leaves something unread.
  EXPECT_EQ(::send(client.get(), "x", 1, 0), 1);
  server = UniqueFd();
  EXPECT_EQ(ReceiveHandshake(client, kTimeMax).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HandshakeTest, WhoReadsOneLineGetsTheToken) {
  auto [server, client] = Connected();
  const UniqueFd memory = MemoryOf(1);
  ASSERT_TRUE(SendHandshake(server, "0123abcd", 4096, {1}, {memory.get()}).ok());
  char line[9];
  ASSERT_EQ(::recv(client.get(), line, sizeof(line), 0), std::ssize(line));
  EXPECT_EQ(std::string_view(line, sizeof(line)), "0123abcd\n");
}

TEST(HandshakeTest, OtherFormsAreRefused) {
  EXPECT_EQ(Receive("").status().code(), absl::StatusCode::kUnavailable);
  const std::string_view bad[] = {
      "token",      "token\n",           "token\narena",      "token\narena 4096 1\n",
      "\n\n",       "token\narena x\n",  "token\narena -1\n", "token\narena 4096 99999999999\n",
      "token\nx\n", "token\narena  1\n", "token\narena 4096"};
  for (const std::string_view text : bad) {
    EXPECT_EQ(Receive(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_TRUE(Receive("token\narena 0\n").ok());
  EXPECT_EQ(Receive(std::string(100000, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HandshakeTest, ASilentServerIsNotWaitedForLong) {
  auto [server, client] = Connected();
  EXPECT_EQ(ReceiveHandshake(client, std::chrono::milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace cairn::rpc
