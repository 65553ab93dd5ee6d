#include "compute-node/service/inference_service.h"

#include <algorithm>
#include <limits>
#include <regex>

#include <gtest/gtest.h>

#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

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
  constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
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
      [](Request& r) { r.mutable_sampling()->set_top_p(kNotANumber); },
      [](Request& r) { r.mutable_sampling()->set_temperature(kNotANumber); },
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
      [](Request& r) { r.add_stop_token_ids(-1); },
      [](Request& r) { r.add_stop_token_ids(512); },
      [](Request& r) {
        for (int i = 0; i < 257; ++i) r.add_stop_token_ids(5);
      },
      [](Request& r) { r.set_label(std::string(257, 'x')); },
      [](Request& r) {
        for (int i = 0; i < 2048; ++i) r.mutable_tokens()->add_ids(5);
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

// The vocabulary has none of ChatML's tokens, so that what ends a turn is text.
TEST_F(InferenceServiceTest, ATurnThatATextEndedIsNotEndedAgain) {
  LoadModel("chatml");
  const std::shared_ptr<Runtime> runtime = *state_.runtime();
  for (const std::string answer :
       {"hello<|im_end|>", "hello<|im_end|>\n", "hello", "<|im_end|> x"}) {
    v1::GenerateRequest stored;
    stored.set_text(answer);
    stored.set_tokens_max(-1);
    ASSERT_TRUE(Generate(stored).ok());
    v1::GenerateRequest next;
    next.set_conversation_id(events_.front().started().conversation_id());
    next.set_tokens_max(1);
    AddMessage(next, "user", "and now?");
    ASSERT_TRUE(Generate(next).ok());
    const ChatPosition position =
        answer == "hello<|im_end|>" ? ChatPosition::kAfterEnd : ChatPosition::kOpen;
    EXPECT_EQ(events_.front().started().prompt_token_count(),
              std::ssize(runtime->tokenizer->EncodePieces(*runtime->chat->Render(
                  std::vector<ChatMessage>{{"user", "and now?"}}, position, true))))
        << answer;
  }
}

TEST_F(InferenceServiceTest, AStopTokenEndsTheGeneration) {
  LoadModel();
  v1::GenerateRequest request = RandomRequest();
  ASSERT_TRUE(Generate(request).ok());
  const std::vector<std::int32_t> ids = Ids();
  request.add_stop_token_ids(ids[4]);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(Ids().back(), ids[4]);
  EXPECT_LE(Ids().size(), 5U);
  EXPECT_EQ(events_.back().finished().reason(), v1::FINISH_REASON_STOP);
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

TEST_F(InferenceServiceTest, StoreIsDescribedOnceThereIsOne) {
  v1::GetStoreResponse store;
  {
    grpc::ClientContext context;
    EXPECT_EQ(stub_->GetStore(&context, v1::GetStoreRequest(), &store).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  LoadModel();
  ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetStore(&context, v1::GetStoreRequest(), &store).ok());
  EXPECT_EQ(store.conversation_count(), 1);
  const absl::StatusOr<KvStats> stats = (*state_.runtime())->node->Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(store.io_engine(), stats->io_engine);
  EXPECT_EQ(store.used_bytes(), stats->flash_used_bytes);
  EXPECT_EQ(store.size_bytes(), stats->flash_size_bytes);
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

TEST_F(InferenceServiceTest, ConversationThatIsStoppedBeforeItIsItsOwnLeavesNothing) {
  LoadModel();
  ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  // Somebody reads the next one before its generation has it.
  const std::size_t before = node_->sessions.size();
  const SessionId next(node_->sessions.rbegin()->first + 1);
  ASSERT_TRUE(state_.open_conversations().TryTake(next));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::GenerateRequest request;
  request.set_text("hello");
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server_->StopGenerations(std::chrono::minutes(10)));
  EXPECT_EQ(node_->sessions.size(), before);
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

// Wherever the KV node is lost: what is kept, and what of the prompt and of the answer is not.
TEST_F(InferenceServiceTest, ATurnThatFailedSaysWhatItLost) {
  LoadModel();
  int count = 0;
  for (int call = 1; call <= 40; ++call) {
    v1::GenerateRequest request = RandomRequest();
    ASSERT_TRUE(Generate(request).ok());
    request.set_conversation_id(events_.front().started().conversation_id());
    node_->opened_by_another = true;
    node_->calls_until_loss = call;
    const grpc::Status status = Generate(request);
    node_->opened_by_another = false;
    node_->calls_until_loss = 0;
    if (status.ok() || events_.empty()) continue;
    const v1::Started& started = events_.front().started();
    const std::string& said = status.error_message();
    std::smatch kept;
    ASSERT_TRUE(std::regex_search(said, kept, std::regex("keeps ([0-9]+) tokens(.*)"))) << said;
    const std::int64_t lost =
        started.reused_token_count() + started.prompt_token_count() - std::stoll(kept[1].str());
    const std::int64_t shown = std::ssize(Ids());
    if (lost > 0) {
      ++count;
      std::string expected = fmt::format(", without the last {} of the prompt", lost);
      if (shown > 0) expected += fmt::format(" and the {} of the answer", shown);
      EXPECT_EQ(kept[2].str(), expected);
    } else if (shown + lost > 0) {
      EXPECT_EQ(kept[2].str(), fmt::format(", without the last {} of the answer", shown + lost));
    } else {
      EXPECT_EQ(kept[2].str(), "");
    }
  }
  EXPECT_GT(count, 0);
}

// What dies with this process is the KV node's to delete.
TEST_F(InferenceServiceTest, ANewConversationStaysOnlyOnceItHoldsSomething) {
  LoadModel();
  ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  EXPECT_EQ(node_->sessions.at(1).created.lifetime, SessionLifetime::kFromCheckpoint);
  node_->refuse_deletions = true;
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) { r.set_ephemeral(true); }), grpc::StatusCode::OK);
  EXPECT_EQ(node_->sessions.at(2).created.lifetime, SessionLifetime::kEphemeral);
}

TEST_F(InferenceServiceTest, AnotherConversationOfTheSameNumberIsNotReached) {
  LoadModel();
  ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  const std::int64_t id = events_.front().started().conversation_id();
  const std::string uid = events_.front().started().conversation_uid();
  ASSERT_EQ(std::ssize(uid), kUidBytes);
  const std::string wrong(kUidBytes, 'w');
  const auto code_of_turn = [&](const std::string& with) {
    return CodeFor([&](v1::GenerateRequest& r) {
      r.set_conversation_id(id);
      r.set_conversation_uid(with);
      r.mutable_sampling()->set_repetition_penalty(1.1F);  // earlier tokens are read first
    });
  };
  const std::int64_t held = node_->sessions.at(id).committed.token_count;
  EXPECT_EQ(code_of_turn(wrong), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(code_of_turn("short"), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeFor([&](v1::GenerateRequest& r) { r.set_conversation_uid(uid); }),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto code_of = [&](auto call, auto request, auto response, const std::string& with) {
    grpc::ClientContext context;
    request.set_conversation_id(id);
    request.set_conversation_uid(with);
    return (stub_.get()->*call)(&context, request, &response).error_code();
  };
  using Stub = v1::InferenceService::Stub;
  EXPECT_EQ(code_of(&Stub::GetConversation, v1::GetConversationRequest(),
                    v1::GetConversationResponse(), wrong),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code_of(&Stub::ForkConversation, v1::ForkConversationRequest(),
                    v1::ForkConversationResponse(), wrong),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code_of(&Stub::DeleteConversation, v1::DeleteConversationRequest(),
                    v1::DeleteConversationResponse(), wrong),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(node_->sessions.at(id).committed.token_count, held);
  EXPECT_EQ(code_of_turn(uid), grpc::StatusCode::OK);
  EXPECT_EQ(code_of(&Stub::GetConversation, v1::GetConversationRequest(),
                    v1::GetConversationResponse(), uid),
            grpc::StatusCode::OK);
  EXPECT_EQ(code_of(&Stub::DeleteConversation, v1::DeleteConversationRequest(),
                    v1::DeleteConversationResponse(), uid),
            grpc::StatusCode::OK);
}

TEST_F(InferenceServiceTest, ATurnFollowsWhatItsCallerThinksOrIsRefused) {
  LoadModel();
  ASSERT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  const std::int64_t id = events_.front().started().conversation_id();
  const std::int64_t held = events_.back().finished().conversation_token_count();
  const auto code_of_turn = [&](std::int64_t count) {
    return CodeFor([&](v1::GenerateRequest& r) {
      r.set_conversation_id(id);
      r.set_conversation_token_count(count);
    });
  };
  EXPECT_EQ(code_of_turn(held + 1), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(code_of_turn(0), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(node_->sessions.at(id).committed.token_count, held);
  EXPECT_EQ(code_of_turn(held), grpc::StatusCode::OK);
  EXPECT_EQ(code_of_turn(held), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace cairn::compute
