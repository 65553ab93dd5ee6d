#include "clients/cpp/cairn_client.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "cairn/compute/v1/inference.grpc.pb.h"
#include "common/base/status.h"
#include "common/rpc/grpc_runtime.h"

namespace cairn {
namespace {

namespace v1 = ::cairn::compute::v1;
using Writer = grpc::ServerWriter<v1::GenerateEvent>;

// A daemon that generates what a test says.
class FakeService final : public v1::InferenceService::Service {
 public:
  std::function<grpc::Status(grpc::ServerContext&, Writer&)> generate;
  std::function<grpc::Status(v1::GetConversationResponse&)> read;
  std::atomic<int> call_count{0};
  v1::GenerateRequest request;  // the last one
  std::string named_uid;        // of the last other call

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request_now,
                        Writer* writer) override {
    ++call_count;
    request = *request_now;
    return generate(*context, *writer);
  }
  grpc::Status ListConversations(grpc::ServerContext*, const v1::ListConversationsRequest*,
                                 v1::ListConversationsResponse* response) override {
    response->add_conversations()->set_conversation_id(8);
    response->mutable_conversations(0)->set_conversation_uid("listed");
    response->add_conversations()->set_conversation_id(7);
    response->mutable_conversations(1)->set_usable(true);
    return grpc::Status::OK;
  }
  grpc::Status ForkConversation(grpc::ServerContext*,
                                const v1::ForkConversationRequest* request_now,
                                v1::ForkConversationResponse* response) override {
    named_uid = request_now->conversation_uid();
    response->set_conversation_id(9);
    response->set_conversation_uid("forked");
    return grpc::Status::OK;
  }
  grpc::Status DeleteConversation(grpc::ServerContext*,
                                  const v1::DeleteConversationRequest* request_now,
                                  v1::DeleteConversationResponse*) override {
    named_uid = request_now->conversation_uid();
    return grpc::Status::OK;
  }
  grpc::Status GetConversation(grpc::ServerContext*, const v1::GetConversationRequest* request_now,
                               v1::GetConversationResponse* response) override {
    named_uid = request_now->conversation_uid();
    response->mutable_conversation()->set_conversation_uid("read");
    return read ? read(*response) : grpc::Status::OK;
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    response->set_phase(v1::DAEMON_PHASE_READY);
    return grpc::Status::OK;
  }
};

class CairnClientTest : public testing::Test {
 protected:
  void SetUp() override {
    rpc::KeepGrpcRuntime();
    socket_ = fmt::format("{}cairn_client_{}.sock", testing::TempDir(), ::getpid());
    Serve();
    absl::StatusOr<std::unique_ptr<CairnClient>> client = CairnClient::Connect(socket_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    options_.prompt = "hello";
  }
  void TearDown() override { StopServing(); }

  void Serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServing() {
    server_->Shutdown();
    ::unlink(socket_.c_str());
  }

  // Sends the events, then waits for the client to cancel.
  void GenerateUntilCancelled(int event_count) {
    service_.generate = [event_count](grpc::ServerContext& context, Writer& writer) {
      v1::GenerateEvent event;
      event.mutable_started()->set_conversation_id(7);
      for (int i = 0; i < event_count; ++i) {
        writer.Write(event);
        event.mutable_token()->set_text("word");
      }
      while (!context.IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    };
  }

  absl::Status EndWith(const grpc::Status& status) {
    service_.generate = [status](grpc::ServerContext&, Writer&) { return status; };
    return client_->Generate(options_).status();
  }

  std::string socket_;
  FakeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CairnClient> client_;
  GenerateOptions options_;
  CancelToken cancel_;
};

TEST_F(CairnClientTest, CancellationBeforeAnythingPromisesNothing) {
  GenerateUntilCancelled(0);
  cancel_.Cancel();
  const absl::Status status = client_->Generate(options_, &cancel_).status();
  EXPECT_EQ(status, absl::CancelledError("cancelled before the prompt was begun"));
}

TEST_F(CairnClientTest, CancellationInThePromptPromisesOnlyWhatWasDone) {
  GenerateUntilCancelled(1);
  options_.on_started = [this](std::int64_t, std::int64_t, std::int64_t) { cancel_.Cancel(); };
  const absl::Status status = client_->Generate(options_, &cancel_).status();
  EXPECT_EQ(status,
            absl::CancelledError("cancelled while the prompt was computed; conversation 7 keeps "
                                 "the part that was done, if any"));
}

TEST_F(CairnClientTest, CancellationBehindATokenNamesTheConversationThatHasIt) {
  GenerateUntilCancelled(2);
  options_.on_text = [this](std::string_view) { cancel_.Cancel(); };
  const absl::Status status = client_->Generate(options_, &cancel_).status();
  EXPECT_EQ(status, absl::CancelledError("cancelled; what was generated is in conversation 7"));
}

TEST_F(CairnClientTest, KeptTokensAreThoseBehindTheEndOfTheGeneration) {
  int asked = 0;
  service_.read = [&asked](v1::GetConversationResponse& response) {
    if (++asked < 3) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "generating");
    response.mutable_conversation()->set_token_count(4096);
    return grpc::Status::OK;
  };
  EXPECT_EQ(client_->WaitForKeptTokens(7, std::chrono::seconds(60)).value_or(-1), 4096);
  service_.read = [](v1::GetConversationResponse&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "gone");
  };
  EXPECT_EQ(client_->WaitForKeptTokens(7, std::chrono::seconds(60)).value_or(-1), 0);
  service_.read = [](v1::GetConversationResponse&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "generating");
  };
  EXPECT_EQ(client_->WaitForKeptTokens(7, std::chrono::seconds(0)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CairnClientTest, ConversationIsFoundAmongAll) {
  const absl::StatusOr<ConversationInfo> found = client_->FindConversation(7);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->usable);
  EXPECT_EQ(client_->FindConversation(5).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CairnClientTest, ComputingAgainIsToldWithItsReason) {
  service_.generate = [](grpc::ServerContext&, Writer& writer) {
    v1::GenerateEvent event;
    event.mutable_recomputing()->set_token_count(90);
    event.mutable_recomputing()->set_reason("a part failed its check");
    writer.Write(event);
    event.mutable_recomputing()->clear_reason();
    event.mutable_recomputing()->set_done_token_count(90);
    writer.Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_END);
    writer.Write(event);
    return grpc::Status::OK;
  };
  std::string told;
  options_.on_recomputing = [&](std::int64_t done, std::int64_t total, std::string_view reason) {
    told += fmt::format("{}/{} {};", done, total, reason);
  };
  const absl::StatusOr<GenerateResult> result = client_->Generate(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(told, "0/90 a part failed its check;90/90 ;");
}

TEST_F(CairnClientTest, CancelledEphemeralConversationKeepsNothing) {
  GenerateUntilCancelled(2);
  options_.ephemeral = true;
  options_.on_text = [this](std::string_view) { cancel_.Cancel(); };
  const absl::Status status = client_->Generate(options_, &cancel_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_NE(Message(status).find("nothing was kept"), std::string::npos) << status;
}

TEST_F(CairnClientTest, CancellationByTheDaemonIsToldInItsWordsAndIsNotTheCallers) {
  const absl::Status status = EndWith({grpc::StatusCode::CANCELLED, "the moon is full"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Message(status).ends_with(" ended the call: the moon is full")) << status;
}

TEST_F(CairnClientTest, FailureWithoutAMessageNamesItsCode) {
  for (const auto& [code, name] :
       {std::pair(grpc::StatusCode::INTERNAL, "INTERNAL"),
        std::pair(grpc::StatusCode::CANCELLED, "CANCELLED"),
        std::pair(grpc::StatusCode::RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED")}) {
    const absl::Status status = EndWith({code, ""});
    EXPECT_NE(Message(status).find(fmt::format("{} without a reason", name)), std::string::npos)
        << status;
    EXPECT_NE(Message(status).find(socket_), std::string::npos) << status;
  }
}

TEST_F(CairnClientTest, ConnectionThatEndsIsADaemonThatWentAway) {
  for (const char* words : {"Socket closed", "Broken pipe", "recvmsg:Connection reset by peer"}) {
    const absl::Status status = EndWith({grpc::StatusCode::UNAVAILABLE, words});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Message(status),
              fmt::format("cairn-compute-node at {} went away ({}); its log may say "
                          "why",
                          socket_, words));
  }
  const absl::Status own =
      EndWith({grpc::StatusCode::UNAVAILABLE, "cairn-compute-node is stopping"});
  EXPECT_EQ(Message(own), "cairn-compute-node is stopping");
}

TEST_F(CairnClientTest, FirstCallAfterARestartIsAnswered) {
  service_.generate = [](grpc::ServerContext&, Writer& writer) {
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason(v1::FINISH_REASON_END);
    writer.Write(event);
    return grpc::Status::OK;
  };
  ASSERT_TRUE(client_->Generate(options_).ok());
  for (const int failed_calls : {0, 1, 5}) {
    StopServing();
    for (int i = 0; i < failed_calls; ++i) {
      const absl::Status status = client_->Generate(options_).status();
      EXPECT_NE(Message(status).find("is it running?"), std::string::npos) << status;
    }
    Serve();
    const absl::Status first = client_->Generate(options_).status();
    EXPECT_TRUE(first.ok()) << first << " after calls that failed: " << failed_calls;
    EXPECT_TRUE(client_->DeleteConversation(7).ok());
  }
}

TEST_F(CairnClientTest, BadTextIsRefusedBeforeItIsSent) {
  EXPECT_EQ(EndWith(grpc::Status::OK).code(), absl::StatusCode::kInternal);  // without a last event
  const int calls = service_.call_count;
  options_.prompt = "\xff";
  EXPECT_EQ(client_->Generate(options_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Tokenize("\xff", false).status().code(), absl::StatusCode::kInvalidArgument);
  options_.prompt.assign(kPromptBytesMax + 1, 'a');
  EXPECT_EQ(client_->Generate(options_).status().code(), absl::StatusCode::kInvalidArgument);
  options_.prompt = "hello";
  options_.label.assign(kPromptBytesMax * 2, 'a');
  EXPECT_EQ(client_->Generate(options_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(service_.call_count, calls);
}

TEST_F(CairnClientTest, RetrievalIsSentIfSomethingIsSetAndThePolicyIsTold) {
  service_.generate = [](grpc::ServerContext&, Writer& writer) {
    v1::GenerateEvent event;
    event.mutable_started()->set_policy("of the conversation");
    writer.Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_END);
    writer.Write(event);
    return grpc::Status::OK;
  };
  const absl::StatusOr<GenerateResult> result = client_->Generate(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->policy, "of the conversation");
  EXPECT_FALSE(service_.request.has_retrieval());
  EXPECT_EQ(service_.request.prefill_tokens_max(), 0);
  options_.policy = "some";
  options_.select_percent = 2.5F;
  options_.select_tokens_min = 70;
  options_.select_tokens_max = 80;
  options_.cluster_target_entries = 9;
  options_.clustering_seed = ~std::uint64_t{0};
  options_.estimate_percent = 0.0F;
  options_.prefill_tokens_max = 256;
  ASSERT_TRUE(client_->Generate(options_).ok());
  const v1::Retrieval& sent = service_.request.retrieval();
  EXPECT_EQ(sent.policy(), "some");
  EXPECT_EQ(sent.select_percent(), 2.5F);
  EXPECT_EQ(sent.select_tokens_min(), 70);
  EXPECT_EQ(sent.select_tokens_max(), 80);
  EXPECT_EQ(sent.cluster_target_entries(), 9);
  EXPECT_EQ(sent.seed(), ~std::uint64_t{0});
  EXPECT_TRUE(sent.has_estimate_percent());
  EXPECT_EQ(sent.estimate_percent(), 0);
  EXPECT_EQ(service_.request.prefill_tokens_max(), 256);
  options_.policy = "\xff";
  EXPECT_EQ(client_->Generate(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CairnClientConnectTest, MissingSocketSaysWhatToStart) {
  const std::string path = testing::TempDir() + "cairn_client_nobody.sock";
  const absl::Status status = CairnClient::Connect(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(Message(status).find("is it running?"), std::string::npos) << status;
}

TEST(CairnClientConnectTest, PathThatNoAddressHoldsIsRefusedWithBothSizes) {
  const absl::Status status = CairnClient::Connect("/" + std::string(107, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("108 bytes: an address holds 107"), std::string::npos) << status;
}

TEST(CairnClientConnectTest, EmptyPathIsRefused) {
  const absl::Status status = CairnClient::Connect("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("socket path is empty"), std::string::npos) << status;
}

// The daemon may have another store by then.
TEST_F(CairnClientTest, AnIdMeansTheConversationThatWasToldByIt) {
  service_.generate = [](grpc::ServerContext&, Writer& writer) {
    v1::GenerateEvent event;
    event.mutable_started()->set_conversation_id(7);
    event.mutable_started()->set_conversation_uid("started");
    writer.Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_END);
    writer.Write(event);
    return grpc::Status::OK;
  };
  ASSERT_TRUE(client_->Generate(options_).ok());
  EXPECT_EQ(service_.request.conversation_uid(), "");
  EXPECT_FALSE(service_.request.has_conversation_token_count());
  options_.conversation_id = 7;
  options_.conversation_token_count = 30;
  ASSERT_TRUE(client_->Generate(options_).ok());
  EXPECT_EQ(service_.request.conversation_uid(), "started");
  EXPECT_EQ(service_.request.conversation_token_count(), 30);
  ASSERT_TRUE(client_->ForkConversation(7, 1).ok());
  EXPECT_EQ(service_.named_uid, "started");
  ASSERT_TRUE(client_->DeleteConversation(9).ok());
  EXPECT_EQ(service_.named_uid, "forked");
  ASSERT_TRUE(client_->DeleteConversation(8).ok());
  EXPECT_EQ(service_.named_uid, "");
  ASSERT_TRUE(client_->ListConversations().ok());
  ASSERT_TRUE(client_->ReadConversation(8).ok());
  EXPECT_EQ(service_.named_uid, "listed");
  ASSERT_TRUE(client_->DeleteConversation(8).ok());
  EXPECT_EQ(service_.named_uid, "read");
}

}  // namespace
}  // namespace cairn
