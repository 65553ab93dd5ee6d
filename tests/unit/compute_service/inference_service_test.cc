#include "compute-node/service/inference_service.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "compute-node/service/compute_server.h"
#include "compute-node/service/generate_job.h"
#include "tests/tools/model_maker.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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

  // `chat`: name of a chat template; empty: none.
  void LoadModel(const std::string& chat = "") {
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
    runtime->identity.key.model_digest = std::string(32, 'm');
    runtime->identity.key.rope_parameters = "test";
    runtime->identity.layout = {.layer_count = static_cast<std::int32_t>(config.layer_count),
                                .head_count = static_cast<std::int32_t>(config.kv_head_count),
                                .head_dim = static_cast<std::int32_t>(config.head_dim),
                                .kv_format = KvFormat::kF16};
    auto node = std::make_unique<FakeKvNode>(1);
    node_ = node.get();
    runtime->node = std::move(node);
    if (!chat.empty()) runtime->chat = ChatTemplate::ByName(chat);
    ::unlink(path.c_str());
    state_.SetReady(std::move(runtime));
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

TEST_F(InferenceServiceTest, LoadingDaemonTellsHowFarItIsAndRefusesTheRest) {
  state_.SetLoading(30, 100);
  grpc::ClientContext context;
  v1::GetStatusResponse status;
  ASSERT_TRUE(stub_->GetStatus(&context, v1::GetStatusRequest(), &status).ok());
  EXPECT_EQ(status.phase(), v1::DAEMON_PHASE_LOADING);
  EXPECT_EQ(status.model_loaded_bytes(), 30);
  v1::GenerateRequest request;
  request.set_text("hello");
  const grpc::Status refused = Generate(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(refused.error_message().find("30 of 100 bytes"), std::string::npos);
}

TEST_F(InferenceServiceTest, EventsComeInTheirOrder) {
  LoadModel();
  v1::GenerateRequest request;
  request.set_text("hello world");
  request.set_tokens_max(5);
  request.set_ignore_eos(true);
  ASSERT_TRUE(Generate(request).ok());
  ASSERT_GE(events_.size(), 8U);
  EXPECT_TRUE(events_.front().has_started());
  EXPECT_TRUE(events_.back().has_finished());
  EXPECT_EQ(std::count_if(events_.begin(), events_.end(),
                          [](const v1::GenerateEvent& event) { return event.has_token(); }),
            5);
  EXPECT_EQ(events_.back().finished().generated_token_count(), 5);
  EXPECT_EQ(events_.back().finished().conversation_token_count(),
            events_.front().started().prompt_token_count() + 5);
}

TEST_F(InferenceServiceTest, FieldsOutOfRangeAreRefusedAndStoreNothing) {
  LoadModel();
  using Request = v1::GenerateRequest;
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& r) { r.set_conversation_id(-1); },
      [](Request& r) { r.clear_prompt(); },
      [](Request& r) { r.mutable_tokens(); },
      [](Request& r) { r.mutable_tokens()->add_ids(-1); },
      [](Request& r) { r.mutable_tokens()->add_ids(512); },
      [](Request& r) { r.mutable_sampling()->set_temperature(-1); },
      [](Request& r) { r.mutable_sampling()->set_temperature(11); },
      [](Request& r) { r.mutable_sampling()->set_top_k(-1); },
      [](Request& r) { r.mutable_sampling()->set_top_p(1.5F); },
      [](Request& r) { r.mutable_sampling()->set_top_p(kNan); },
      [](Request& r) { r.mutable_sampling()->set_temperature(kNan); },
      [](Request& r) { r.set_top_logprob_count(5); },  // without logprobs
      [](Request& r) { r.set_top_logprob_count(-1); },
      [](Request& r) {
        r.set_logprobs(true);
        r.set_top_logprob_count(21);
      },
      [](Request& r) { r.add_stop(""); },
      [](Request& r) { r.add_stop(std::string(257, 'x')); },
      [](Request& r) {
        for (int i = 0; i < 17; ++i) r.add_stop("x");
      },
      [](Request& r) { r.set_label(std::string(257, 'x')); },
      [](Request& r) {
        for (int i = 0; i < 2049; ++i) r.mutable_tokens()->add_ids(5);
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(CodeFor(changes[i]), grpc::StatusCode::INVALID_ARGUMENT) << i;
  }
  EXPECT_TRUE(node_->sessions.empty());
  EXPECT_EQ(CodeFor([](Request& r) { r.set_conversation_id(9); }), grpc::StatusCode::NOT_FOUND);
}

void AddMessage(v1::GenerateRequest& request, const std::string& role, const std::string& content) {
  v1::ChatMessage& message = *request.mutable_messages()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

// The first turn, and one behind an answer that the limit ended: its end is written first.
TEST_F(InferenceServiceTest, MessagesAreWrittenBehindWhatIsStored) {
  LoadModel("zephyr");
  const std::shared_ptr<Runtime> runtime = *state_.runtime();
  const auto tokens_of = [&runtime](const std::vector<ChatMessage>& messages,
                                    ChatPosition position) {
    return std::ssize(
        runtime->tokenizer->EncodePieces(*runtime->chat->Render(messages, position, true)));
  };
  v1::GenerateRequest request;
  request.set_tokens_max(3);
  AddMessage(request, "system", "Be brief.");
  AddMessage(request, "user", "hello</s>");
  const grpc::Status first = Generate(request);
  ASSERT_TRUE(first.ok()) << first.error_message();
  // The template leaves the beginning-of-text token to the tokenizer.
  EXPECT_EQ(events_.front().started().prompt_token_count(),
            1 + tokens_of({{"system", "Be brief."}, {"user", "hello</s>"}}, ChatPosition::kFirst));
  const v1::Finished& finished = events_.back().finished();
  std::int32_t last = 0;
  for (const v1::GenerateEvent& event : events_) {
    if (event.has_token()) last = event.token().id();
  }
  const bool ended = runtime->tokenizer->IsEndOfGeneration(last);
  EXPECT_EQ(ended, finished.reason() == v1::FINISH_REASON_END);
  const std::int64_t held = finished.conversation_token_count();

  request.set_conversation_id(events_.front().started().conversation_id());
  request.clear_messages();
  AddMessage(request, "user", "and now?");
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(events_.front().started().reused_token_count(), held);
  EXPECT_EQ(
      events_.front().started().prompt_token_count(),
      tokens_of({{"user", "and now?"}}, ended ? ChatPosition::kAfterEnd : ChatPosition::kOpen));

  // What ends with the end-of-turn token needs no other.
  request.clear_messages();
  AddMessage(request, "user", "note this");
  request.set_tokens_max(-1);
  ASSERT_TRUE(Generate(request).ok());
  request.set_tokens_max(3);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(events_.front().started().prompt_token_count(),
            tokens_of({{"user", "note this"}}, ChatPosition::kAfterEnd));
}

TEST_F(InferenceServiceTest, MessagesThatATemplateCannotWriteAreRefused) {
  LoadModel("llama2");
  using Request = v1::GenerateRequest;
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& r) { r.mutable_messages(); },
      [](Request& r) { AddMessage(r, "tool", "x"); },
      [](Request& r) { AddMessage(r, "assistant", "x"); },
      [](Request& r) {
        AddMessage(r, "user", "x");
        AddMessage(r, "user", "y");
      },
      [](Request& r) {
        AddMessage(r, "user", std::string(kPromptBytesMax / 2 + 1, 'x'));
        AddMessage(r, "assistant", std::string(kPromptBytesMax / 2 + 1, 'x'));
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(CodeFor(changes[i]), grpc::StatusCode::INVALID_ARGUMENT) << i;
  }
  EXPECT_TRUE(node_->sessions.empty());
  ASSERT_EQ(CodeFor([](Request& r) { AddMessage(r, "user", "x"); }), grpc::StatusCode::OK);
  // A conversation that has begun takes no system message any more, and keeps what it has.
  EXPECT_EQ(CodeFor([](Request& r) {
              r.set_conversation_id(1);
              AddMessage(r, "system", "x");
              AddMessage(r, "user", "y");
            }),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(node_->sessions.size(), 1U);
}

TEST_F(InferenceServiceTest, TheModelsTemplateIsNamedAndMessagesNeedOne) {
  LoadModel();
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) { AddMessage(r, "user", "x"); }),
            grpc::StatusCode::FAILED_PRECONDITION);
  (*state_.runtime())->chat = ChatTemplate::ByName("chatml");
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) { AddMessage(r, "user", "x"); }),
            grpc::StatusCode::OK);
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &models).ok());
  EXPECT_EQ(models.models(0).chat_template(), "chatml");
}

TEST_F(InferenceServiceTest, SamplingOutOfRangeIsRefusedWithNameValueAndLimits) {
  LoadModel();
  using Sampling = v1::Sampling;
  const auto bias = [](Sampling& s, std::int32_t id, float value) {
    s.add_logit_bias()->set_id(id);
    s.mutable_logit_bias()->rbegin()->set_bias(value);
  };
  const std::vector<std::pair<std::string, std::function<void(Sampling&)>>> cases = {
      {"sampling: min_p is 1.5, expected 0", [](Sampling& s) { s.set_min_p(1.5F); }},
      {"min_p is nan", [](Sampling& s) { s.set_min_p(kNan); }},
      {"typical_p is -1, expected above 0", [](Sampling& s) { s.set_typical_p(-1); }},
      {"typical_p is nan", [](Sampling& s) { s.set_typical_p(kNan); }},
      {"repetition_penalty is 11, expected 0.1 to 10",
       [](Sampling& s) { s.set_repetition_penalty(11); }},
      {"repetition_penalty is nan", [](Sampling& s) { s.set_repetition_penalty(kNan); }},
      {"presence_penalty is 3, expected -2 to 2", [](Sampling& s) { s.set_presence_penalty(3); }},
      {"frequency_penalty is -3, expected -2 to 2",
       [](Sampling& s) { s.set_frequency_penalty(-3); }},
      {"penalty_last_tokens is -2, expected -1",
       [](Sampling& s) { s.set_penalty_last_tokens(-2); }},
      {"logit_bias has token 512: ids are 0 to 511", [&](Sampling& s) { bias(s, 512, 1); }},
      {"logit_bias has token -1: ids are 0 to 511", [&](Sampling& s) { bias(s, -1, 1); }},
      {"logit_bias of token 5 is 101: it must be at most 100",
       [&](Sampling& s) { bias(s, 5, 101); }},
      {"logit_bias of token 5 is nan", [&](Sampling& s) { bias(s, 5, kNan); }},
      {"logit_bias has token 5 twice",
       [&](Sampling& s) {
         bias(s, 5, 1);
         bias(s, 5, 2);
       }},
      {"logit_bias has 1025 tokens: at most 1024",
       [&](Sampling& s) {
         for (int i = 0; i < 1025; ++i) bias(s, i % 512, 1);
       }},
  };
  for (const auto& [words, change] : cases) {
    v1::GenerateRequest request;
    request.set_text("hello");
    change(*request.mutable_sampling());
    const grpc::Status status = Generate(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << words;
    EXPECT_NE(status.error_message().find(words), std::string::npos) << status.error_message();
  }
  EXPECT_TRUE(node_->sessions.empty());
}

TEST_F(InferenceServiceTest, EverySamplingFieldReachesTheSampler) {
  LoadModel();
  v1::GenerateRequest plain = RandomRequest();
  ASSERT_TRUE(Generate(plain).ok());
  const std::vector<std::int32_t> ids = Ids();
  ASSERT_TRUE(Generate(plain).ok());
  EXPECT_EQ(Ids(), ids);
  using Sampling = v1::Sampling;
  const std::vector<std::function<void(Sampling&)>> changes = {
      [](Sampling& s) { s.set_min_p(1); },
      [](Sampling& s) { s.set_typical_p(0.01F); },
      [](Sampling& s) { s.set_repetition_penalty(9); },
      [](Sampling& s) { s.set_presence_penalty(2); },
      [](Sampling& s) { s.set_frequency_penalty(2); },
      [&](Sampling& s) {
        s.add_logit_bias()->set_id(ids[0]);
        s.mutable_logit_bias(0)->set_bias(-std::numeric_limits<float>::infinity());
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    v1::GenerateRequest changed = plain;
    changes[i](*changed.mutable_sampling());
    ASSERT_TRUE(Generate(changed).ok());
    EXPECT_NE(Ids(), ids) << i;
  }
  // What is written as its default is the default.
  v1::GenerateRequest same = plain;
  same.mutable_sampling()->set_typical_p(1);
  same.mutable_sampling()->set_repetition_penalty(1);
  same.mutable_sampling()->set_penalty_last_tokens(-1);
  ASSERT_TRUE(Generate(same).ok());
  EXPECT_EQ(Ids(), ids);
}

TEST_F(InferenceServiceTest, BanningEveryTokenIsTheRequestsFault) {
  LoadModel();
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) {
              for (int i = 0; i < 512; ++i) {
                v1::LogitBias& bias = *r.mutable_sampling()->add_logit_bias();
                bias.set_id(i);
                bias.set_bias(-100);
              }
            }),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// A conversation in two turns is one in a single turn, to the penalties as well.
TEST_F(InferenceServiceTest, PenaltiesCountTheConversationsStoredTokens) {
  LoadModel();
  for (const std::int32_t last : {0, 30, -1}) {
    v1::GenerateRequest whole = RandomRequest();
    whole.mutable_sampling()->set_repetition_penalty(8);
    whole.mutable_sampling()->set_penalty_last_tokens(last);
    whole.clear_text();
    for (int i = 0; i < 80; ++i) whole.mutable_tokens()->add_ids(3 + i * 7 % 500);
    ASSERT_TRUE(Generate(whole).ok());
    const std::vector<std::int32_t> expected = Ids();

    v1::GenerateRequest first = whole;
    first.set_tokens_max(-1);
    first.mutable_tokens()->mutable_ids()->Truncate(77);
    ASSERT_TRUE(Generate(first).ok());
    v1::GenerateRequest second = whole;
    second.mutable_tokens()->mutable_ids()->erase(second.tokens().ids().begin(),
                                                  second.tokens().ids().begin() + 77);
    second.set_conversation_id(events_.front().started().conversation_id());
    ASSERT_TRUE(Generate(second).ok());
    EXPECT_EQ(Ids(), expected) << last;
  }
}

TEST_F(InferenceServiceTest, LogProbabilitiesComeOnlyOnRequest) {
  LoadModel();
  v1::GenerateRequest request = RandomRequest();
  ASSERT_TRUE(Generate(request).ok());
  for (const v1::GenerateEvent& event : events_) EXPECT_FALSE(event.token().has_logprob());
  const std::vector<std::int32_t> ids = Ids();
  request.set_logprobs(true);
  ASSERT_TRUE(Generate(request).ok());
  for (const v1::GenerateEvent& event : events_) {
    EXPECT_EQ(event.token().has_logprob(), event.has_token());
    EXPECT_EQ(event.token().top_logprobs_size(), 0);
  }
  request.set_top_logprob_count(4);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(Ids(), ids);
  const std::shared_ptr<Runtime> runtime = state_.runtime().value();
  for (const v1::GenerateEvent& event : events_) {
    if (!event.has_token()) continue;
    const v1::TokenLogprob& chosen = event.token().logprob();
    EXPECT_EQ(chosen.id(), event.token().id());
    EXPECT_EQ(chosen.text(), runtime->tokenizer->DecodePiece(chosen.id(), true));
    EXPECT_LT(chosen.logprob(), 0);
    ASSERT_EQ(event.token().top_logprobs_size(), 4);
    float before = 0;
    for (const v1::TokenLogprob& token : event.token().top_logprobs()) {
      EXPECT_EQ(token.text(), runtime->tokenizer->DecodePiece(token.id(), true));
      EXPECT_LE(token.logprob(), before);
      before = token.logprob();
      if (token.id() == chosen.id()) {
        EXPECT_EQ(token.logprob(), chosen.logprob());
      }
    }
    EXPECT_LE(chosen.logprob(), event.token().top_logprobs(0).logprob());
  }
}

TEST_F(InferenceServiceTest, LastEventTellsAllThatWasUsed) {
  LoadModel();
  v1::GenerateRequest request = RandomRequest();
  ASSERT_TRUE(Generate(request).ok());
  const v1::Started started = events_.front().started();
  const v1::Finished first = events_.back().finished();
  EXPECT_EQ(first.prompt_token_count(), started.prompt_token_count());
  EXPECT_GT(first.prompt_token_count(), 0);
  EXPECT_EQ(first.reused_token_count(), 0);
  EXPECT_EQ(first.conversation_token_count(),
            first.prompt_token_count() + first.generated_token_count());
  ASSERT_TRUE(first.has_queue_time());
  const auto ns = [](const google::protobuf::Duration& time) {
    return time.seconds() * 1'000'000'000 + time.nanos();
  };
  EXPECT_GT(ns(first.queue_time()), 0);
  EXPECT_GE(ns(first.first_token_time()), ns(first.queue_time()) + ns(first.prefill_time()));
  EXPECT_GT(ns(first.decode_time()), 0);
  request.set_conversation_id(started.conversation_id());
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(events_.back().finished().reused_token_count(), first.conversation_token_count());
  EXPECT_EQ(events_.back().finished().prompt_token_count(),
            events_.front().started().prompt_token_count());
}

TEST_F(InferenceServiceTest, ListIsCutIntoPages) {
  LoadModel();
  for (int i = 0; i < 7; ++i) {
    ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  }
  std::vector<std::int64_t> ids;
  v1::ListConversationsRequest request;
  request.set_page_size(3);
  int pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListConversationsResponse response;
    ASSERT_TRUE(stub_->ListConversations(&context, request, &response).ok());
    EXPECT_LE(response.conversations_size(), 3);
    for (const v1::Conversation& conversation : response.conversations()) {
      ids.push_back(conversation.conversation_id());
    }
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{7, 6, 5, 4, 3, 2, 1}));
  for (const std::string token : {"x", "1", "1.", ".1", "1.2x"}) {
    grpc::ClientContext context;
    v1::ListConversationsResponse response;
    request.set_page_token(token);
    EXPECT_EQ(stub_->ListConversations(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << token;
  }
}

TEST_F(InferenceServiceTest, DeadlineEndsAGeneration) {
  LoadModel();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::GenerateRequest request;
  for (int i = 0; i < 200; ++i) request.mutable_tokens()->add_ids(5);  // more than the window
  request.set_tokens_max(1 << 20);
  request.set_ignore_eos(true);
  node_->fetches_to_stall = 1;  // it would wait for ever
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(InferenceServiceTest, EphemeralAndFailedConversationsLeaveNothing) {
  LoadModel();
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) { r.set_ephemeral(true); }), grpc::StatusCode::OK);
  EXPECT_TRUE(node_->sessions.empty());
  node_->opened_by_another = true;
  node_->calls_until_loss = 2;
  EXPECT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(node_->sessions.empty());
}

}  // namespace
}  // namespace cairn::compute
