// A KV node of another release: refused when it is connected to, with what to do about it.
#include <gtest/gtest.h>

#include "common/rpc/unix_server.h"
#include "compute-node/kv_client/grpc_kv_node.h"
#include "kv-node/service/handshake_server.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/service/fake_engine.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kPartBytes = 1 << 16;

// Says what it can do, and can do nothing.
class NodeOfOneCall : public pb::KvService::Service {
 public:
  explicit NodeOfOneCall(pb::GetCapabilitiesResponse answer) : answer_(std::move(answer)) {}
  grpc::Status GetCapabilities(grpc::ServerContext* /*context*/,
                               const pb::GetCapabilitiesRequest* /*request*/,
                               pb::GetCapabilitiesResponse* response) override {
    *response = answer_;
    return grpc::Status::OK;
  }

 private:
  const pb::GetCapabilitiesResponse answer_;
};

absl::Status ConnectTo(const pb::GetCapabilitiesResponse& capabilities) {
  const cairn::test::TempDir directory;
  const std::string socket_path = directory.File("kv.sock");
  NodeOfOneCall service(capabilities);
  kv::TokenRegistry registry;
  const kv::fake::FakeEngine engine(std::make_shared<kv::fake::FakeStore>());
  rpc::UnixServerOptions options;
  options.socket_path = socket_path;
  options.service_name = pb::KvService::service_full_name();
  auto server = rpc::UnixServer::Start(options, &service);
  EXPECT_TRUE(server.ok()) << server.status();
  auto handshake = kv::HandshakeServer::Start(socket_path + rpc::kHandshakeSuffix,
                                              rpc::kSocketModeDefault, &registry, &engine);
  EXPECT_TRUE(handshake.ok()) << handshake.status();
  return GrpcKvNode::Connect(socket_path, KvClientOptions()).status();
}

pb::GetCapabilitiesResponse Capabilities(std::int32_t protocol_version,
                                         std::initializer_list<pb::Operation> operations) {
  pb::GetCapabilitiesResponse out;
  out.set_protocol_version(protocol_version);
  out.set_part_bytes_max(kPartBytes);
  for (const pb::Operation operation : operations) out.add_operations(operation);
  return out;
}

TEST(OlderNodeTest, NodeWithoutANeededOperationIsRefusedByItsName) {
  const absl::Status status = ConnectTo(Capabilities(1, {pb::OPERATION_FETCH_INDEX}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(Message(status).find("OPERATION_FETCH_VISIBLE_INDEX"), std::string::npos) << status;
  EXPECT_NE(Message(status).find("one release"), std::string::npos) << status;
}

TEST(OlderNodeTest, NodeOfAnotherProtocolIsRefused) {
  const absl::Status status =
      ConnectTo(Capabilities(2, {pb::OPERATION_FETCH_INDEX, pb::OPERATION_FETCH_VISIBLE_INDEX}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(Message(status).find("protocol version 2"), std::string::npos) << status;
}

TEST(OlderNodeTest, NodeWithAllThatIsNeededIsConnectedTo) {
  const absl::Status status =
      ConnectTo(Capabilities(1, {pb::OPERATION_FETCH_INDEX, pb::OPERATION_FETCH_VISIBLE_INDEX}));
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace cairn::compute
