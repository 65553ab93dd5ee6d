// A KV node that is stopped and started in order: what it kept.
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "kv-node/daemon/calibration.h"
#include "kv-node/util/calibrate.h"
#include "kv-node/util/store_tool.h"
#include "tests/integration/kv_node_process.h"

namespace cairn::test {
namespace {

using compute::GrpcKvNode;
using compute::KvSession;

class KvNodeTest : public testing::TestWithParam<std::string> {
 protected:
  void Start() {
    const auto ready = node_.Start();
    if (!ready.ok() && Message(ready.status()).find("io_uring") != std::string::npos &&
        GetParam() == "io_uring") {
      GTEST_SKIP() << "this kernel refuses io_uring: " << ready.status();
    }
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_NE(ready->find("io_engine=" + GetParam()), std::string::npos) << *ready;
  }
  void Connect() {
    auto connected = GrpcKvNode::Connect(node_.socket_path(), {});
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  std::unique_ptr<KvSession> Open(const SessionRef& ref) {
    auto session = client_->Open(ref);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  KvNodeProcess node_{GetParam()};
  std::unique_ptr<GrpcKvNode> client_;
};

TEST_P(KvNodeTest, StartsServesAndStopsWithExitCodeZero) {
  ASSERT_NO_FATAL_FAILURE(Start());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(client_->io_engine(), GetParam());
  const auto stats = client_->Stats();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->io_engine, GetParam());
  EXPECT_EQ(stats->flash_size_bytes, 33554432);
  const auto code = node_.Stop();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_FALSE(std::filesystem::exists(node_.socket_path()));
  EXPECT_FALSE(std::filesystem::exists(node_.socket_path() + ".handshake"));
}

TEST_P(KvNodeTest, ConversationIsThereAfterARestart) {
  ASSERT_NO_FATAL_FAILURE(Start());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto id = client_->Create(Talk::Request());
  ASSERT_TRUE(id.ok()) << id.status();
  {
    const auto session = Open(*id);
    ASSERT_TRUE(Talk::Append(session.get(), 0, 1000).ok());
    ASSERT_TRUE(session->Send(PutPolicyState{3, "state of the policy"}).ok());
    const auto done = Talk::TakeCheckpoint(session.get(), 1000, 0);
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_TRUE(Talk::Append(session.get(), 1000, 100).ok());  // no checkpoint covers it
    EXPECT_TRUE(Talk::Holds(session.get(), 1100));
  }
  ASSERT_EQ(node_.Stop().value_or(-1), 0);
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto session = Open(*id);
  EXPECT_EQ(session->attachment().token_count, 1000);
  EXPECT_TRUE(Talk::Holds(session.get(), 1000));
  const auto tokens = compute::Wait<TokensReply>(session->StartRead(GetTokens{998, 10}));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->token_ids, (std::vector<std::int32_t>{1998, 1999}));
  const auto state = compute::Wait<PolicyStateReply>(session->StartRead(GetPolicyState{}));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->state, "state of the policy");
  const auto sessions = client_->List(ListDetail::kRows);
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  ASSERT_EQ(sessions->size(), 1U);
  EXPECT_EQ(sessions->front().token_count, 1000);
}

TEST_P(KvNodeTest, AttachedSessionGoesOnThroughAnOrderlyRestart) {
  ASSERT_NO_FATAL_FAILURE(Start());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto session = Open(*client_->Create(Talk::Request()));
  ASSERT_TRUE(Talk::Append(session.get(), 0, 100).ok());
  ASSERT_EQ(node_.Stop().value_or(-1), 0);
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_TRUE(Talk::Holds(session.get(), 100));
  ASSERT_TRUE(Talk::Append(session.get(), 100, 50).ok());
  ASSERT_TRUE(Talk::TakeCheckpoint(session.get(), 150, 0).ok());
  EXPECT_TRUE(Talk::Holds(session.get(), 150));
  EXPECT_GE(session->reconnect_count(), 1);
}

TEST_P(KvNodeTest, DeletedSessionIsGoneAfterARestart) {
  ASSERT_NO_FATAL_FAILURE(Start());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto id = client_->Create(Talk::Request());
  ASSERT_TRUE(id.ok());
  {
    const auto session = Open(*id);
    ASSERT_TRUE(Talk::Append(session.get(), 0, 500).ok());
    ASSERT_TRUE(Talk::TakeCheckpoint(session.get(), 500, 0).ok());
  }
  const std::int64_t used_bytes = client_->Stats()->flash_used_bytes;
  ASSERT_TRUE(client_->Delete(*id).ok());
  ASSERT_EQ(node_.Stop().value_or(-1), 0);
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(client_->Open(*id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(client_->List(ListDetail::kRows)->empty());
  EXPECT_LT(client_->Stats()->flash_used_bytes, used_bytes);
}

INSTANTIATE_TEST_SUITE_P(IoEngines, KvNodeTest, testing::Values("io_uring", "threads"),
                         [](const auto& param) { return param.param; });

TEST(KvNodeIoEngineTest, StoreOfOneEngineIsReadByTheOther) {
  KvNodeProcess node("threads");
  ASSERT_TRUE(node.Start().ok());
  auto client = GrpcKvNode::Connect(node.socket_path(), {});
  ASSERT_TRUE(client.ok()) << client.status();
  const SessionId id = (*client)->Create(Talk::Request())->id;
  {
    const auto session = (*client)->Open({id}).value();
    ASSERT_TRUE(Talk::Append(session.get(), 0, 300).ok());
    ASSERT_TRUE(Talk::TakeCheckpoint(session.get(), 300, 0).ok());
  }
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  node.SetConfig("io_engine", "\"auto\"");
  ASSERT_TRUE(node.Start().ok());
  client = GrpcKvNode::Connect(node.socket_path(), {});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto session = (*client)->Open({id}).value();
  EXPECT_TRUE(Talk::Holds(session.get(), 300));
}

TEST(KvNodeCalibrationTest, HolesAreReadWhereThatCostsNoMoreThanARequest) {
  kv::DeviceProfile profile;
  const auto gap_and_piece = [&profile] {
    const kv::MergeLimits limits = kv::MergeLimitsOf(profile);
    return std::pair(limits.gap_bytes, limits.piece_bytes_max);
  };
  EXPECT_EQ(gap_and_piece(), std::pair(std::int64_t{0}, std::int64_t{0}));
  // Limited by 8,000 requests a second below 31,250 bytes, as eMMC is.
  for (std::int64_t size = 4096; size <= 1 << 20; size *= 2) {
    profile.by_size.push_back({size, 32, std::min<std::int64_t>(size * 8000, 250'000'000)});
  }
  EXPECT_EQ(gap_and_piece(), std::pair(std::int64_t{12288}, std::int64_t{16384}));
  // 11 us for each request and 3 GB/s.
  profile.by_size.clear();
  for (std::int64_t size = 4096; size <= 1 << 20; size *= 2) {
    const double seconds = 11e-6 + static_cast<double>(size) / 3e9;
    profile.by_size.push_back(
        {size, 32, static_cast<std::int64_t>(static_cast<double>(size) / seconds)});
  }
  const auto [gap, piece] = gap_and_piece();
  EXPECT_GE(gap, 12288);
  EXPECT_LE(gap, 32768);
  EXPECT_GE(piece, 262144);
}

TEST(KvNodeCalibrationTest, TheFlashIsMeasuredAtTheFirstStartOnly) {
  KvNodeProcess node;
  node.SetConfig("prefill_extent_file", "true");
  const std::string measured = "device calibrated device=";
  for (const bool first : {true, false}) {
    ASSERT_TRUE(node.Start().ok());
    ASSERT_EQ(node.Stop().value_or(-1), 0);
    const std::string output = node.process().output();
    EXPECT_EQ(output.find(measured) != std::string::npos, first) << output;
  }
  // With a model above it it is another device, which is measured as what it is.
  node.SetConfig("experiment", "{ device_profile: \"emmc\" }");
  ASSERT_TRUE(node.Start().ok());
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  const std::string output = node.process().output();
  const std::size_t line = output.find(measured);
  ASSERT_NE(line, std::string::npos) << output;
  EXPECT_NE(output.substr(line, output.find('\n', line) - line).find("+emmc "), std::string::npos)
      << output;
  std::string said;
  const auto findings = kv::VerifyStore({.directory = node.data_dir()},
                                        [&](const std::string& text) { said += text + "\n"; });
  ASSERT_TRUE(findings.ok()) << findings.status();
  EXPECT_EQ(*findings, 0) << said;
}

TEST(KvNodeCalibrationTest, SpaceThatIsOnlyReservedIsNotMeasured) {
  KvNodeProcess node;  // prefill_extent_file is false
  ASSERT_TRUE(node.Start().ok());
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  EXPECT_NE(node.process().output().find("device not calibrated"), std::string::npos);
}

// Neither by a config that changed since, nor by the offline tool.
TEST(KvNodeCalibrationTest, SpaceThatWasOnlyReservedIsNeverMeasured) {
  KvNodeProcess node;
  ASSERT_TRUE(node.Start().ok());
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  const kv::CalibrateCommand command{.data_dir = node.data_dir(), .device_profile = ""};
  const absl::Status status = kv::RunCalibrate(command).status();
  if (status.ok()) GTEST_SKIP() << "this file system does not say which space was written";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  node.SetConfig("prefill_extent_file", "true");
  ASSERT_TRUE(node.Start().ok());
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  EXPECT_NE(node.process().output().find("device not calibrated"), std::string::npos);
}

TEST(KvNodeCalibrationTest, TheOfflineToolMeasuresWhatTheNextStartUses) {
  KvNodeProcess node;
  node.SetConfig("prefill_extent_file", "true");
  ASSERT_TRUE(node.Start().ok());
  const kv::CalibrateCommand command{.data_dir = node.data_dir(), .device_profile = "emmc"};
  EXPECT_EQ(kv::RunCalibrate(command).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  const absl::StatusOr<std::string> report = kv::RunCalibrate(command);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(report->find("+emmc"), std::string::npos) << *report;
  EXPECT_NE(report->find("queue depth"), std::string::npos) << *report;
  node.SetConfig("experiment", "{ device_profile: \"emmc\" }");
  ASSERT_TRUE(node.Start().ok());
  EXPECT_EQ(node.process().output().find("calibrated"), std::string::npos)
      << node.process().output();
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  EXPECT_EQ(kv::RunCalibrate({.data_dir = node.directory() + "/none", .device_profile = ""})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST(KvNodeIoEngineTest, ModelledFlashKeepsConversationsAndIsNamedAsWhatItIs) {
  KvNodeProcess node("threads");
  node.SetConfig("experiment", "{ device_profile: \"emmc\" }");
  const auto ready = node.Start();
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_NE(ready->find("io_engine=threads+emmc"), std::string::npos) << *ready;
  auto client = GrpcKvNode::Connect(node.socket_path(), {});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->Stats()->io_engine, "threads+emmc");
  const SessionId id = (*client)->Create(Talk::Request())->id;
  const auto session = (*client)->Open({id}).value();
  ASSERT_TRUE(Talk::Append(session.get(), 0, 300).ok());
  ASSERT_TRUE(Talk::TakeCheckpoint(session.get(), 300, 0).ok());
  EXPECT_TRUE(Talk::Holds(session.get(), 300));
}

// One datagram of the socket; empty when none came in time.
std::string ReceiveDatagram(int fd) {
  char bytes[256];
  const ssize_t count = ::recv(fd, bytes, sizeof(bytes), 0);
  return count < 0 ? "" : std::string(bytes, static_cast<std::size_t>(count));
}

TEST(KvNodeSystemdTest, ReadyAndStoppingAreToldToSystemd) {
  KvNodeProcess node;
  const std::string path = node.directory() + "/notify.sock";
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  const timeval time_max{kProcessTimeMax.count() / 1000, 0};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time_max, sizeof(time_max)), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_TRUE(node.Start({"NOTIFY_SOCKET=" + path}).ok());
  EXPECT_EQ(ReceiveDatagram(fd), "READY=1");
  ASSERT_EQ(node.Stop().value_or(-1), 0);
  EXPECT_EQ(ReceiveDatagram(fd), "STOPPING=1");
  ::close(fd);
}

}  // namespace
}  // namespace cairn::test
