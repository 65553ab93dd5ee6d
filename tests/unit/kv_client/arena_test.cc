// Fetches through gRPC with the KV node's shared memory: a real engine behind a real server.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <gtest/gtest.h>

#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/arena_map.h"
#include "compute-node/kv_client/channel_call.h"
#include "compute-node/kv_client/grpc_kv_node.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/layout/part.h"
#include "kv-node/service/kv_server.h"
#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/kv_client/client_values.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kEntryBytes = 512;  // so that a part of few entries fills pages

CreateSession WideSession() {
  CreateSession create = values::ValidCreateSession();
  create.layout = {1, 1, 128, KvFormat::kF16};
  return create;
}

std::string EntriesOf(std::int64_t first, std::int64_t count) {
  std::string out;
  for (std::int64_t i = first; i < first + count; ++i) {
    out.append(kEntryBytes, static_cast<char>('a' + i % 23));
  }
  return out;
}

class ArenaTest : public testing::Test {
 protected:
  void SetUp() override { Start({}); }

  void Start(kv::EngineOptions options) {
    server_.reset();
    engine_.reset();
    options.durable = false;
    kv::MetaOptions meta_options;
    meta_options.path = "/arena-test";
    meta_options.in_memory = true;
    auto meta = kv::MetaStore::Open(std::move(meta_options));
    ASSERT_TRUE(meta.ok()) << meta.status();
    auto engine = kv::Engine::Open(options, kv::StoreId{},
                                   std::make_unique<kv::MemoryDevice>(std::int64_t{64} << 20),
                                   *std::move(meta));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    const kv::NodeIdentity identity{std::string(16, 'b'), std::string(16, 's'), "memory"};
    auto server = kv::KvServer::Start({.socket_path = socket_path_}, identity, engine_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->SetServing(true);
  }

  std::unique_ptr<GrpcKvNode> Connect(bool use_arena) {
    KvClientOptions options;
    options.use_arena = use_arena;
    auto node = GrpcKvNode::Connect(socket_path_, options);
    EXPECT_TRUE(node.ok()) << node.status();
    return *std::move(node);
  }

  // Stores `count` entries of cluster 1 behind `first`, durably.
  static void Store(KvSession& session, std::int64_t first, std::int64_t count) {
    Append append;
    append.clusters.push_back({{0, ClusterId(1)},
                               Positions::Range(first, count),
                               ::cairn::compute::EntriesOf(first, count)});
    ASSERT_TRUE(session.Send(std::move(append)).ok());
    Checkpoint checkpoint = values::CheckpointAt(first + count, first);
    checkpoint.next_cluster_ids = {2, 2};
    ASSERT_TRUE(session.Send(std::move(checkpoint)).ok());
    const auto done = session.WaitForCheckpoint();
    ASSERT_TRUE(done.ok()) << done.status();
  }

  static std::string Joined(const FetchReply& reply) {
    std::string out;
    for (const Span& span : reply.clusters.at(0).spans) {
      for (std::int64_t i = 0; i < span.entry_count; ++i) {
        out.append(reinterpret_cast<const char*>(span.Entry(i, kEntryBytes)), kEntryBytes);
      }
    }
    return out;
  }

  static FetchReply FetchOf(KvSession& session) {
    auto reply = Wait<FetchReply>(session.StartRead(values::FetchAll()));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return *std::move(reply);
  }

  cairn::test::TempDir directory_;
  const std::string socket_path_ = directory_.File("kv.sock");
  std::unique_ptr<kv::Engine> engine_;
  std::unique_ptr<kv::KvServer> server_;
};

TEST_F(ArenaTest, EntriesAreReadWhereTheKvNodeHasThem) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  const FetchReply reply = FetchOf(*session);
  EXPECT_EQ(Joined(reply), ::cairn::compute::EntriesOf(0, 40));
  for (const Span& span : reply.clusters.at(0).spans) {
    EXPECT_NE(span.arena.granule_id, 0);
    EXPECT_TRUE(span.WasIntact());
  }
}

TEST_F(ArenaTest, AClientWithoutSharedMemoryGetsTheSameBytes) {
  const auto node = Connect(/*use_arena=*/false);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  const FetchReply reply = FetchOf(*session);
  EXPECT_EQ(Joined(reply), ::cairn::compute::EntriesOf(0, 40));
  for (const Span& span : reply.clusters.at(0).spans) EXPECT_EQ(span.arena.granule_id, 0);
}

TEST_F(ArenaTest, AKvNodeWithoutAnArenaAnswersInline) {
  kv::EngineOptions options;
  options.arena_bytes_max = 0;
  Start(options);
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  EXPECT_EQ(Joined(FetchOf(*session)), ::cairn::compute::EntriesOf(0, 40));
}

TEST_F(ArenaTest, TheNextMessageGivesDroppedLeasesBack) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  {
    const FetchReply reply = FetchOf(*session);
    EXPECT_EQ(node->Stats()->leased_slot_count, 1);
  }
  ASSERT_TRUE(Wait<PolicyStateReply>(session->StartRead(GetPolicyState{})).ok());
  EXPECT_EQ(node->Stats()->leased_slot_count, 0);
}

TEST_F(ArenaTest, LeasesGoBackWithoutAnotherMessageWhenAsked) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  FetchOf(*session);
  session->ReturnLeases();
  while (node->Stats()->leased_slot_count != 0) {
  }
}

// The KV node's handshake finds nobody, as when the node dies between a reply and its mapping.
TEST_F(ArenaTest, AReplyThatCouldNotBeTakenGivesBackNoLeaseOfTheNextStream) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  const std::string handshake = socket_path_ + std::string(rpc::kHandshakeSuffix);
  std::filesystem::rename(handshake, handshake + ".away");
  auto answer = session->StartRead(values::FetchAll());
  while (session->reconnect_count() == 0) {
  }
  std::filesystem::rename(handshake + ".away", handshake);
  const absl::StatusOr<FetchReply> reply = Wait<FetchReply>(std::move(answer));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(Wait<PolicyStateReply>(session->StartRead(GetPolicyState{})).ok());
  EXPECT_EQ(node->Stats()->leased_slot_count, 1);
}

// The KV node has ended the stream and given its memory back before the reply's is mapped.
TEST_F(ArenaTest, AReplyWhoseMemoryIsGoneSaysWhyItsStreamEnded) {
  const auto node = Connect(/*use_arena=*/true);
  const SessionRef id = *node->Create(WideSession());
  const auto session = *node->Open(id);
  Store(*session, 0, 40);
  const std::string path = socket_path_ + std::string(rpc::kHandshakeSuffix);
  const auto wait_max = std::chrono::milliseconds(20000);
  const auto handshake = rpc::ReceiveHandshake(*rpc::ConnectToSocket(path, wait_max), wait_max);
  ASSERT_TRUE(handshake.ok()) << handshake.status();
  std::filesystem::rename(path, path + ".away");
  auto late = rpc::ListenOnSocket(path, 0600);
  ASSERT_TRUE(late.ok()) << late.status();
  auto answer = session->StartRead(values::FetchAll());
  UniqueFd asks;
  while (!asks.valid()) asks = UniqueFd(::accept4(late->get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::filesystem::rename(path + ".away", path);
  Connect(/*use_arena=*/true)->Open(id).value().reset();
  while (!engine_->ArenaGranules(kDefaultApp).empty()) {
  }
  ASSERT_TRUE(rpc::SendHandshake(asks, handshake->token, 0, {}, {}).ok());
  const auto reply = Wait<FetchReply>(std::move(answer));
  EXPECT_TRUE(absl::IsAborted(reply.status())) << reply.status();
  EXPECT_TRUE(cairn::test::Says(reply.status(), "another owner")) << reply.status();
}

TEST_F(ArenaTest, ManyLeasesOfOneStreamEndInInlineReplies) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  std::vector<FetchReply> held;
  for (std::int64_t i = 0; i < kv::kLeasedFetchesMax; ++i) {
    held.push_back(FetchOf(*session));
    EXPECT_NE(held.back().clusters.at(0).spans.at(0).arena.granule_id, 0);
  }
  const FetchReply inline_reply = FetchOf(*session);
  EXPECT_EQ(inline_reply.clusters.at(0).spans.at(0).arena.granule_id, 0);
  EXPECT_EQ(Joined(inline_reply), ::cairn::compute::EntriesOf(0, 40));
}

TEST_F(ArenaTest, AReplyOutlivesItsSessionUntilTheMemoryIsUsedAgain) {
  kv::EngineOptions options;
  options.arena_bytes_max = kv::kArenaBytesMin;
  Start(options);
  const auto node = Connect(/*use_arena=*/true);
  const SessionId first = node->Create(WideSession())->id;
  auto session = *node->Open({first});
  Store(*session, 0, 40);
  const auto other = *node->Open(*node->Create(WideSession()));  // keeps the arena's granules
  Store(*other, 0, 40);
  const FetchReply held = FetchOf(*session);
  session.reset();  // its stream ends, and its leases with it
  const Span& span = held.clusters.at(0).spans.at(0);
  EXPECT_TRUE(span.WasIntact());
  EXPECT_EQ(Joined(held), ::cairn::compute::EntriesOf(0, 40));
  // Others take the memory over, sooner or later.
  std::int64_t count = 40;
  for (int round = 0; span.WasIntact(); ++round) {
    Store(*other, count, 40);
    count += 40;
    EXPECT_EQ(Joined(FetchOf(*other)), ::cairn::compute::EntriesOf(0, count));
    ASSERT_LT(round, 200);
  }
  EXPECT_FALSE(span.WasIntact());
}

TEST_F(ArenaTest, ARequestIdUsedAgainUnderItsLeaseGetsItsBytesInline) {
  const auto node = Connect(/*use_arena=*/true);
  const SessionId id = node->Create(WideSession())->id;
  {
    const auto session = *node->Open({id});
    Store(*session, 0, 40);
  }
  NodeLink link(socket_path_, KvClientOptions());
  const auto connection = *link.Get();
  kv::v1::KvService::Stub* const stub = connection->stub.get();
  kv::v1::OpenSessionRequest open;
  open.set_session_id(id.value());
  kv::v1::OpenSessionResponse opened;
  grpc::ClientContext context;
  connection->Prepare(&context, std::chrono::milliseconds(20000));
  ASSERT_TRUE(stub->OpenSession(&context, open, &opened).ok());
  const auto call = *ChannelCall::Open(connection, id, Epoch(opened.attachment().epoch()));
  kv::v1::ChannelRequest fetch;
  fetch.set_request_id(7);
  kv::v1::ClusterRef* cluster = fetch.mutable_fetch()->add_clusters();
  cluster->set_cluster_id(1);
  std::int64_t next_id = 8;
  for (const bool in_arena : {true, false, false}) {
    ASSERT_TRUE(call->Write(fetch));
    const auto reply = call->Read();
    ASSERT_NE(reply, nullptr);
    EXPECT_EQ(rpc::HasArenaSpans(*reply), in_arena);
    // An id may be used again once its answer was written, which the next answer shows.
    kv::v1::ChannelRequest next;
    next.set_request_id(next_id++);
    next.mutable_get_policy_state();
    ASSERT_TRUE(call->Write(next));
    ASSERT_NE(call->Read(), nullptr);
  }
  fetch.add_released_request_ids(7);
  ASSERT_TRUE(call->Write(fetch));
  EXPECT_TRUE(rpc::HasArenaSpans(*call->Read()));
}

// ---- ranges that no honest KV node names ----
TEST_F(ArenaTest, RangesOutsideTheirGranuleAreRefused) {
  const auto node = Connect(/*use_arena=*/true);
  const auto session = *node->Open(*node->Create(WideSession()));
  Store(*session, 0, 40);
  const FetchReply reply = FetchOf(*session);
  const std::int32_t id = reply.clusters.at(0).spans.at(0).arena.granule_id;
  int handshakes = 0;
  ArenaMap map([&]() -> absl::StatusOr<rpc::HandshakeMessage> {
    ++handshakes;
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd socket,
                           rpc::ConnectToSocket(socket_path_ + rpc::kHandshakeSuffix,
                                                std::chrono::milliseconds(20000)));
    return rpc::ReceiveHandshake(socket, std::chrono::milliseconds(20000));
  });
  EXPECT_TRUE(map.Resolve(id, 0, 4096).ok());
  EXPECT_TRUE(map.Resolve(id, 4096, 4096).ok());
  EXPECT_EQ(handshakes, 1);
  const std::int64_t granule_bytes = engine_->ArenaGranules(kDefaultApp).at(0)->size_bytes();
  const std::pair<std::int64_t, std::int64_t> bad[] = {
      {-1, 10},           {0, 0},         {0, -5},       {0, granule_bytes + 1},
      {granule_bytes, 1}, {INT64_MAX, 1}, {1, INT64_MAX}};
  for (const auto& [offset, size] : bad) {
    EXPECT_EQ(map.Resolve(id, offset, size).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(map.Resolve(id + 1, 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(handshakes, 2);
}

// Not by a fetch of this process: without descriptors gRPC ends calls that are under way.
TEST_F(ArenaTest, WithoutDescriptorsItSaysWhatToDo) {
  rpc::HandshakeMessage nothing_came_through;
  nothing_came_through.granule_bytes = 4096;
  for (const bool has_socket : {false, true}) {
    ArenaMap map([&]() -> absl::StatusOr<rpc::HandshakeMessage> {
      if (has_socket) return std::move(nothing_came_through);
      return ErrnoStatus(EMFILE, "create a Unix socket");
    });
    const absl::Status status = map.Resolve(1, 0, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(cairn::test::Says(status, "raise the limit of open files")) << status;
  }
}

TEST_F(ArenaTest, MemoryThatCouldShrinkIsNotMapped) {
  ArenaMap map([]() -> absl::StatusOr<rpc::HandshakeMessage> {
    rpc::HandshakeMessage message;
    message.granule_bytes = 4096;
    message.granules.push_back({1, UniqueFd(::memfd_create("unsealed", MFD_CLOEXEC))});
    EXPECT_EQ(::ftruncate(message.granules[0].fd.get(), 4096), 0);
    return message;
  });
  EXPECT_EQ(map.Resolve(1, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::compute
