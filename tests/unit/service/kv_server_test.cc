// Sockets, handshake, health.
#include "kv-node/service/kv_server.h"

#include <sys/stat.h>

#include <filesystem>

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <gtest/gtest.h>

#include "common/base/random_bytes.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::kv {
namespace {

using fake::FakeNode;
using fake::RawClient;

class KvServerTest : public testing::Test {
 protected:
  absl::Status StartAnother(const std::string& socket_path) {
    NodeIdentity identity{RandomBytes(kBootTokenBytes), std::string(16, 's'), "memory"};
    return KvServer::Start({.socket_path = socket_path}, identity, &node_.engine()).status();
  }
  FakeNode node_;
};

// The status field of grpc.health.v1.HealthCheckResponse: 1 SERVING, 2 NOT_SERVING. Debian has no
// C++ classes for that service; the messages are two bytes, so they are written by hand.
int HealthStatus(RawClient* client, const std::string& service) {
  std::string bytes = "\x0A";
  bytes += static_cast<char>(service.size());
  bytes += service;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  const auto context = client->Context();
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      client->channel().get(), method, context.get(), request, &response);
  if (!status.ok()) return -static_cast<int>(status.error_code());
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok() || slices.empty() || slices[0].size() != 2) return -100;
  return slices[0].begin()[1];
}

TEST_F(KvServerTest, HealthFollowsServing) {
  RawClient client(node_.socket_path());
  EXPECT_EQ(HealthStatus(&client, ""), 1);
  EXPECT_EQ(HealthStatus(&client, "cairn.kv.v1.KvService"), 1);
  node_.server().SetServing(false);
  EXPECT_EQ(HealthStatus(&client, ""), 2);
  EXPECT_EQ(HealthStatus(&client, "cairn.kv.v1.KvService"), 2);
}

TEST_F(KvServerTest, SocketsAreForTheOwnerOnly) {
  for (const char* suffix : {"", rpc::kHandshakeSuffix}) {
    struct stat info {};
    ASSERT_EQ(::stat((node_.socket_path() + suffix).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
  }
}

TEST_F(KvServerTest, TokenIsLongAndTheSameForOneApp) {
  const std::string token = fake::HandshakeToken(node_.socket_path());
  EXPECT_EQ(token.size(), 64U);
  EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fake::HandshakeToken(node_.socket_path()), token);
}

TEST_F(KvServerTest, HandshakeSurvivesPeersThatLeaveAtOnce) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(
        rpc::ConnectToSocket(node_.socket_path() + rpc::kHandshakeSuffix, fake::kTestTimeMax).ok());
  }
  EXPECT_EQ(fake::HandshakeToken(node_.socket_path()).size(), 64U);
}

TEST_F(KvServerTest, SocketOfARunningServerIsTaken) {
  const absl::Status status = StartAnother(node_.socket_path());
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_NE(Message(status).find("taken"), std::string::npos);
  // The first one is unharmed.
  RawClient client(node_.socket_path());
  v1::GetStatsResponse stats;
  EXPECT_TRUE(client.stub().GetStats(client.Context().get(), {}, &stats).ok());
}

TEST_F(KvServerTest, SocketsAreGoneAfterAStop) {
  node_.Stop();
  EXPECT_FALSE(std::filesystem::exists(node_.socket_path()));
  EXPECT_FALSE(std::filesystem::exists(node_.socket_path() + rpc::kHandshakeSuffix));
}

TEST_F(KvServerTest, PathThatIsTooLongIsRefused) {
  const absl::Status status = StartAnother("/" + std::string(150, 'x') + "/kv.sock");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("shorter directory"), std::string::npos);
}

TEST_F(KvServerTest, DirectoryThatIsMissingIsNamed) {
  const absl::Status status = StartAnother(node_.directory() + "/none/kv.sock");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(Message(status).find("/none/kv.sock"), std::string::npos);
}

}  // namespace
}  // namespace cairn::kv
