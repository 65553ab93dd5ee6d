// A server over a fake KV node and a tiny model, for the tests of InferenceService.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "compute-node/service/compute_server.h"
#include "compute-node/service/generate_job.h"
#include "compute-node/service/turn.h"
#include "tests/tools/model_maker.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {

// A server over a fake KV node and a tiny model. The fake is made for one thread: tests make one
// call at a time.
class InferenceServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    socket_ = fmt::format("{}cairn_service_{}.sock", testing::TempDir(), ::getpid());
    absl::StatusOr<std::unique_ptr<ComputeServer>> server =
        ComputeServer::Start({.socket_path = socket_}, state_);
    ASSERT_TRUE(server.ok()) << Message(server.status());
    server_ = *std::move(server);
    stub_ = v1::InferenceService::NewStub(
        grpc::CreateChannel("unix:" + socket_, grpc::InsecureChannelCredentials()));
  }

  // `chat`: name of a chat template; empty: none. `other_node`: instead of the fake.
  void LoadModel(const std::string& chat = "", std::unique_ptr<KvNode> other_node = nullptr) {
    const std::string path = fmt::format("{}cairn_service_{}.gguf", testing::TempDir(), ::getpid());
    test::ModelOptions model_options;
    model_options.preset = "narrow-llama";
    ASSERT_TRUE(test::WriteModel(model_options, path).ok());
    auto runtime = std::make_shared<Runtime>();
    ModelOptions load;
    load.batch_tokens_max = 256;
    runtime->model = Model::Load(path, load).value();
    runtime->tokenizer = Tokenizer::FromGguf(runtime->model->file()).value();
    runtime->scheduler = std::make_unique<ForwardScheduler>(*runtime->model, 256);
    runtime->options.prefill_chunk_tokens = 256;
    const ModelConfig& config = runtime->model->config();
    ModelIdentity& base = runtime->served.base;
    base.key.model_digest = std::string(32, 'm');
    base.key.rope_parameters = "test";
    base.layout = {.layer_count = static_cast<std::int32_t>(config.layer_count),
                   .head_count = static_cast<std::int32_t>(config.kv_head_count),
                   .head_dim = static_cast<std::int32_t>(config.head_dim),
                   .kv_format = KvFormat::kF16};
    if (other_node == nullptr) {
      auto node = std::make_unique<FakeKvNode>(1);
      node_ = node.get();
      runtime->node = std::move(node);
    } else {
      runtime->node = std::move(other_node);
    }
    if (!chat.empty()) runtime->chat = ChatTemplate::ByName(chat);
    ::unlink(path.c_str());
    state_.SetReady(std::move(runtime));
  }

  // A turn of a client that sends its whole history, in what `store` has: the tokens of the prompt
  // that were there, and the turn's conversation.
  struct KeptTurn {
    std::int64_t reused_token_count = -1;
    SessionId conversation;
  };
  KeptTurn RunKeptTurn(Runtime& runtime, const ModelIdentity& identity,
                       const std::vector<std::int32_t>& prompt, PrefixStore& store) {
    AskedTurn asked;
    asked.identity = identity;
    asked.ephemeral = true;
    asked.turn.prompt = prompt;
    asked.turn.tokens_max = 0;
    StopSignal stop;
    EventSink sink(*runtime.tokenizer, stop, std::chrono::steady_clock::now());
    LiveConversation live(state_.live_conversations(), {}, "");
    Turn turn(runtime, state_, asked, &store, sink, live, stop);
    const absl::Status status = turn.Run();
    EXPECT_TRUE(status.ok()) << status;
    const auto first = sink.queue().Pop(std::chrono::milliseconds(0));
    return {first ? first->started().reused_token_count() : -1, turn.conversation()};
  }

  // All events of a generation.
  grpc::Status Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    events_.clear();
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateEvent event;
    while (reader->Read(&event)) events_.push_back(event);
    return reader->Finish();
  }

  grpc::StatusCode CodeFor(const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request;
    request.set_text("hello");
    request.set_tokens_max(3);
    change(request);
    return Generate(request).error_code();
  }

  // Twelve random tokens, always the same.
  static v1::GenerateRequest RandomRequest() {
    v1::GenerateRequest request;
    request.set_text("hello world, hello world");
    request.set_tokens_max(12);
    request.set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(7);
    return request;
  }

  std::vector<std::int32_t> Ids() const {
    std::vector<std::int32_t> ids;
    for (const v1::GenerateEvent& event : events_) {
      if (event.has_token()) ids.push_back(event.token().id());
    }
    return ids;
  }

  std::string socket_;
  DaemonState state_;
  FakeKvNode* node_ = nullptr;
  std::unique_ptr<ComputeServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::vector<v1::GenerateEvent> events_;
};

}  // namespace cairn::compute
