// FakeNode is a KV node in this process: a KvServer over a FakeEngine in a directory of its own. It
// can be stopped and started again on the same store. RawClient calls it as any gRPC client would.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "cairn/kv/v1/kv.grpc.pb.h"
#include "kv-node/service/kv_server.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/service/fake_engine.h"

namespace cairn::kv::fake {

// No test waits this long unless something is broken.
inline constexpr std::chrono::seconds kTestTimeMax{60};

class FakeNode {
 public:
  FakeNode();
  ~FakeNode();
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  const std::string& directory() const { return directory_.path(); }
  const std::string& socket_path() const { return socket_path_; }
  FakeEngine& engine() { return *engine_; }
  KvServer& server() { return *server_; }

  void Start();
  // With another store, which FakeStore's copies and constructor make. REQUIRES: stopped.
  void Start(std::shared_ptr<FakeStore> store);
  // What is durable. REQUIRES: stopped.
  const std::shared_ptr<FakeStore>& store() const { return store_; }
  // Ends calls at once; the engine forgets what no checkpoint covers.
  void Stop();

 private:
  cairn::test::TempDir directory_;
  const std::string socket_path_ = directory_.File("kv.sock");
  std::shared_ptr<FakeStore> store_ = std::make_shared<FakeStore>();
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<KvServer> server_;
};

// One line of the handshake socket.
std::string HandshakeToken(const std::string& socket_path);

v1::CreateSessionRequest ValidCreateSession();

class RawClient {
 public:
  // With a token from the handshake unless one is given.
  explicit RawClient(const std::string& socket_path, const std::string& token = "");

  v1::KvService::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  // A context with the token and a deadline.
  std::unique_ptr<grpc::ClientContext> Context() const;
  // A new session, attached. Its epoch goes into `epoch`.
  std::int64_t CreateAndOpen(std::int64_t* epoch);

 private:
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvService::Stub> stub_;
};

// A stream that has said Hello.
class RawStream {
 public:
  RawStream(RawClient* client, std::int64_t session, std::int64_t epoch);

  grpc::ClientContext& context() { return *context_; }
  bool Write(const v1::ChannelRequest& request) { return stream_->Write(request); }
  void WritesDone() { stream_->WritesDone(); }
  bool Read(v1::ChannelReply* reply) { return stream_->Read(reply); }
  // Reads what is left.
  grpc::Status Finish();

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ChannelRequest, v1::ChannelReply>> stream_;
};

// Appends one entry of 8 bytes to cluster (0, 0, 1).
v1::ChannelRequest AppendRequest(std::int64_t op_seq, std::int64_t position);
v1::ChannelRequest FetchRequest(std::int64_t request_id, std::int64_t after_op_seq);

}  // namespace cairn::kv::fake
