#include "tests/unit/service/fake_node.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "common/base/check.h"
#include "common/base/random_bytes.h"
#include "common/rpc/handshake.h"

namespace cairn::kv::fake {

FakeNode::FakeNode() { Start(); }

FakeNode::~FakeNode() {
  if (server_ != nullptr) Stop();
}

void FakeNode::Start(std::shared_ptr<FakeStore> store) {
  store_ = std::move(store);
  Start();
}

void FakeNode::Start() {
  engine_ = std::make_unique<FakeEngine>(store_);
  NodeIdentity identity{RandomBytes(kBootTokenBytes), store_->id, "memory"};
  auto server = KvServer::Start({.socket_path = socket_path_}, identity, engine_.get());
  CAIRN_CHECK(server.ok());
  server_ = *std::move(server);
  server_->SetServing(true);
}

void FakeNode::Stop() {
  server_->Shutdown(std::chrono::milliseconds(0));
  server_.reset();
  engine_.reset();
}

std::string HandshakeToken(const std::string& socket_path) {
  const auto socket = rpc::ConnectToSocket(socket_path + rpc::kHandshakeSuffix, kTestTimeMax);
  CAIRN_CHECK(socket.ok());
  const auto handshake = rpc::ReceiveHandshake(*socket, kTestTimeMax);
  CAIRN_CHECK(handshake.ok());
  return handshake->token;
}

v1::CreateSessionRequest ValidCreateSession() {
  v1::CreateSessionRequest request;
  request.mutable_key()->set_model_digest(std::string(32, 'm'));
  request.mutable_key()->set_rope_parameters("base=10000");
  request.mutable_key()->set_kv_format(v1::KV_FORMAT_F16);
  request.mutable_layout()->set_layer_count(2);
  request.mutable_layout()->set_head_count(1);
  request.mutable_layout()->set_head_dim(2);
  request.mutable_layout()->set_kv_format(v1::KV_FORMAT_F16);
  return request;
}

RawClient::RawClient(const std::string& socket_path, const std::string& token)
    : token_(token.empty() ? HandshakeToken(socket_path) : token) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Not the credentials of our own client: any client of another language connects like this.
  channel_ = grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                       arguments);
  stub_ = v1::KvService::NewStub(channel_);
}

std::unique_ptr<grpc::ClientContext> RawClient::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kTestTimeMax);
  if (token_ != "none") context->AddMetadata(kTokenMetadataKey, token_);
  return context;
}

std::int64_t RawClient::CreateAndOpen(std::int64_t* epoch) {
  v1::CreateSessionResponse created;
  CAIRN_CHECK(stub_->CreateSession(Context().get(), ValidCreateSession(), &created).ok());
  v1::OpenSessionRequest request;
  request.set_session_id(created.session_id());
  v1::OpenSessionResponse opened;
  CAIRN_CHECK(stub_->OpenSession(Context().get(), request, &opened).ok());
  *epoch = opened.attachment().epoch();
  return created.session_id();
}

RawStream::RawStream(RawClient* client, std::int64_t session, std::int64_t epoch)
    : context_(client->Context()), stream_(client->stub().Channel(context_.get())) {
  v1::ChannelRequest hello;
  hello.mutable_hello()->set_session_id(session);
  hello.mutable_hello()->set_epoch(epoch);
  Write(hello);
  v1::ChannelReply reply;
  CAIRN_CHECK(Read(&reply) && reply.has_hello());
}

grpc::Status RawStream::Finish() {
  v1::ChannelReply reply;
  while (Read(&reply)) {
  }
  return stream_->Finish();
}

v1::ChannelRequest AppendRequest(std::int64_t op_seq, std::int64_t position) {
  v1::ChannelRequest request;
  request.set_op_seq(op_seq);
  v1::ClusterEntries* cluster = request.mutable_append()->add_clusters();
  cluster->set_cluster_id(1);
  cluster->mutable_positions()->add_starts(position);
  cluster->mutable_positions()->add_lengths(1);
  cluster->set_entries(fmt::format("{:08}", position));
  return request;
}

v1::ChannelRequest FetchRequest(std::int64_t request_id, std::int64_t after_op_seq) {
  v1::ChannelRequest request;
  request.set_request_id(request_id);
  request.set_after_op_seq(after_op_seq);
  request.mutable_fetch()->add_clusters()->set_cluster_id(1);
  return request;
}

}  // namespace cairn::kv::fake
