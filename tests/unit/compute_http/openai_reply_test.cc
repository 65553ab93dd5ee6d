#include "compute-node/http/openai_reply.h"

#include <set>

#include <gtest/gtest.h>

#include "compute-node/http/api_error.h"

namespace cairn::compute {
namespace {

void AddTop(v1::GenerateEvent& event, std::int32_t id, const std::string& text, float logprob) {
  v1::TokenLogprob& top = *event.mutable_token()->add_top_logprobs();
  top.set_id(id);
  top.set_text(text);
  top.set_logprob(logprob);
}

v1::GenerateEvent TokenEvent(const std::string& text, float logprob = -1) {
  v1::GenerateEvent event;
  event.mutable_token()->set_text(text);
  event.mutable_token()->mutable_logprob()->set_text(text);
  event.mutable_token()->mutable_logprob()->set_logprob(logprob);
  AddTop(event, 1, "other", -0.5);
  return event;
}

v1::GenerateEvent FinishedEvent(v1::FinishReason reason) {
  v1::GenerateEvent event;
  event.mutable_finished()->set_reason(reason);
  event.mutable_finished()->set_generated_token_count(3);
  event.mutable_finished()->set_prompt_token_count(10);
  event.mutable_finished()->set_reused_token_count(90);
  event.mutable_finished()->set_exact(true);
  event.mutable_finished()->mutable_prefill_time()->set_nanos(2'500'000);
  return event;
}

v1::GenerateEvent StartedEvent() {
  v1::GenerateEvent event;
  event.mutable_started();
  return event;
}

ApiRequest Request(ApiKind kind, bool stream, bool logprobs = false) {
  ApiRequest request;
  request.kind = kind;
  request.stream = stream;
  request.include_usage = stream;
  request.generate.set_logprobs(logprobs);
  return request;
}

// What a client makes of the stream: every data line, parsed; "[DONE]" as a string.
std::vector<Json> Chunks(OpenAiReply& reply, const std::vector<v1::GenerateEvent>& events) {
  std::string text;
  for (const v1::GenerateEvent& event : events) {
    reply.Add(event, false);
    text += reply.TakeChunks();
  }
  std::vector<Json> chunks;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    EXPECT_TRUE(text.starts_with("data: "));
    const std::string data = text.substr(6, end - 6);
    EXPECT_EQ(data.find('\n'), std::string::npos);
    chunks.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
    text.erase(0, end + 2);
  }
  return chunks;
}

TEST(OpenAiReplyTest, AStreamedChatHasRoleTextsReasonUsageAndAnEnd) {
  OpenAiReply reply(Request(ApiKind::kChat, true), {"chatcmpl-1", 5, "m", "f"});
  const std::vector<Json> chunks =
      Chunks(reply, {StartedEvent(), TokenEvent("a\n"), TokenEvent(""), TokenEvent("\"\u00e9"),
                     FinishedEvent(v1::FINISH_REASON_END)});
  ASSERT_EQ(chunks.size(), 6U);
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "a\n");
  EXPECT_TRUE(chunks[1]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(chunks[2]["choices"][0]["delta"]["content"], "\"\u00e9");
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(chunks[4]["choices"].empty());
  EXPECT_EQ(chunks[4]["usage"]["prompt_tokens"], 100);
  EXPECT_EQ(chunks[4]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(chunks[4]["usage"]["total_tokens"], 103);
  EXPECT_EQ(chunks[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 90);
  EXPECT_EQ(chunks[4]["usage"]["prompt_tokens_details"]["exact"], true);
  EXPECT_EQ(chunks[5], "[DONE]");
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(chunks[i]["id"], "chatcmpl-1");
    EXPECT_EQ(chunks[i]["created"], 5);
    EXPECT_EQ(chunks[i]["model"], "m");
  }
}

TEST(OpenAiReplyTest, WithoutIncludeUsageNoChunkHasUsage) {
  ApiRequest request = Request(ApiKind::kCompletion, true);
  request.include_usage = false;
  OpenAiReply reply(request, {"cmpl-1", 5, "m", "f"});
  const std::vector<Json> chunks =
      Chunks(reply, {StartedEvent(), TokenEvent("a"), FinishedEvent(v1::FINISH_REASON_LENGTH)});
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["object"], "text_completion");
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "a");
  EXPECT_EQ(chunks[1]["choices"][0]["finish_reason"], "length");
  for (std::size_t i = 0; i < 2; ++i) EXPECT_FALSE(chunks[i].contains("usage"));
}

TEST(OpenAiReplyTest, AWholeChatHasTheSameText) {
  OpenAiReply reply(Request(ApiKind::kChat, false), {"chatcmpl-1", 5, "m", "f"});
  for (const auto& event :
       {StartedEvent(), TokenEvent("a"), TokenEvent("b"), FinishedEvent(v1::FINISH_REASON_STOP)}) {
    reply.Add(event, false);
  }
  EXPECT_EQ(reply.TakeChunks(), "");
  const Json answer = Json::parse(reply.WholeAnswer());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ab");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["total_tokens"], 103);
  EXPECT_EQ(answer["timings"]["prompt_ms"], 2.5);
}

TEST(OpenAiReplyTest, EveryReasonHasOpenAisName) {
  const std::pair<v1::FinishReason, const char*> cases[] = {{v1::FINISH_REASON_END, "stop"},
                                                            {v1::FINISH_REASON_STOP, "stop"},
                                                            {v1::FINISH_REASON_LENGTH, "length"},
                                                            {v1::FINISH_REASON_CONTEXT, "length"}};
  for (const auto& [reason, name] : cases) {
    OpenAiReply reply(Request(ApiKind::kCompletion, false), {});
    reply.Add(FinishedEvent(reason), false);
    EXPECT_EQ(Json::parse(reply.WholeAnswer())["choices"][0]["finish_reason"], name);
  }
}

TEST(OpenAiReplyTest, LogProbabilitiesOfAChatAreAListWithBytes) {
  OpenAiReply reply(Request(ApiKind::kChat, false, true), {});
  reply.Add(TokenEvent("a", -0.25), false);
  reply.Add(TokenEvent("\xc3", -2), false);  // half a character
  reply.Add(TokenEvent("<end>"), /*end_token=*/true);
  reply.Add(FinishedEvent(v1::FINISH_REASON_END), false);
  const Json logprobs = Json::parse(reply.WholeAnswer())["choices"][0]["logprobs"];
  EXPECT_TRUE(logprobs.contains("refusal"));  // typed clients require it
  const Json& content = logprobs["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["logprob"], -0.25);
  EXPECT_EQ(content[0]["bytes"], Json::array({97}));
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "other");
  EXPECT_EQ(content[1]["token"], R"(\xc3)");
  EXPECT_EQ(content[1]["bytes"], Json::array({0xc3}));
}

TEST(OpenAiReplyTest, LogProbabilitiesOfACompletionAreParallelLists) {
  OpenAiReply reply(Request(ApiKind::kCompletion, true, true), {});
  const std::vector<Json> chunks = Chunks(reply, {TokenEvent("\u00e9t", -0.25), TokenEvent("b"),
                                                  FinishedEvent(v1::FINISH_REASON_LENGTH)});
  ASSERT_EQ(chunks.size(), 5U);
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["tokens"], Json::array({"\u00e9t"}));
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["top_logprobs"][0]["other"], -0.5);
  EXPECT_EQ(chunks[1]["choices"][0]["logprobs"]["text_offset"], Json::array({2}));
}

Json TopOf(const v1::GenerateEvent& event, ApiKind kind = ApiKind::kCompletion) {
  OpenAiReply reply(Request(kind, false, true), {});
  reply.Add(event, false);
  reply.Add(FinishedEvent(v1::FINISH_REASON_LENGTH), false);
  const std::string text = reply.WholeAnswer();
  // No name is there twice: a parser would drop one of them without a word.
  std::set<std::string> names;
  const auto check = [&names](int, Json::parse_event_t what, Json& parsed) {
    if (what == Json::parse_event_t::object_start) names.clear();
    if (what == Json::parse_event_t::key) {
      EXPECT_TRUE(names.insert(parsed.get<std::string>()).second) << parsed;
    }
    return true;
  };
  return Json::parse(text, check)["choices"][0]["logprobs"];
}

TEST(OpenAiReplyTest, NamesOfACompletionsLikelyTokensAreDistinct) {
  v1::GenerateEvent event = TokenEvent("\xe2\x80", -3);
  event.mutable_token()->mutable_logprob()->set_id(7);
  AddTop(event, 2, "\xe2", -0.75);
  AddTop(event, 3, "other", -1);     // as another token with the id 1
  AddTop(event, 4, "\xe2\x80", -2);  // as the chosen one, and likelier
  const Json logprobs = TopOf(event);
  EXPECT_EQ(logprobs["tokens"], Json::array({R"(bytes:\xe2\x80)"}));
  const Json expected = {{"other", -0.5},
                         {R"(bytes:\xe2)", -0.75},
                         {"token_id:3", -1},
                         {"token_id:4", -2},
                         {R"(bytes:\xe2\x80)", -3}};
  EXPECT_EQ(logprobs["top_logprobs"][0], expected);
}

TEST(OpenAiReplyTest, TheChosenTokenIsAmongTheLikelyOnesInItsPlace) {
  v1::GenerateEvent event = TokenEvent("a", -0.75);
  event.mutable_token()->mutable_logprob()->set_id(7);
  AddTop(event, 2, "b", -2);
  EXPECT_EQ(TopOf(event)["top_logprobs"][0].dump(), R"({"a":-0.75,"b":-2.0,"other":-0.5})");
  event.mutable_token()->clear_top_logprobs();
  EXPECT_EQ(TopOf(event)["top_logprobs"][0].dump(), R"({"a":-0.75})");
  AddTop(event, 7, "a", -0.75);
  EXPECT_EQ(TopOf(event)["top_logprobs"][0].dump(), R"({"a":-0.75})");
}

TEST(OpenAiReplyTest, ASpecialTokenHasANameAndNoText) {
  v1::GenerateEvent event = TokenEvent("<|im_start|>");
  event.mutable_token()->set_text("");
  event.mutable_token()->mutable_logprob()->set_special(true);
  const Json chat = TopOf(event, ApiKind::kChat)["content"][0];
  EXPECT_EQ(chat["token"], "<|im_start|>");
  EXPECT_EQ(chat["bytes"], Json::array());
  OpenAiReply reply(Request(ApiKind::kCompletion, false, true), {});
  for (const auto& next : {event, TokenEvent("a"), FinishedEvent(v1::FINISH_REASON_LENGTH)}) {
    reply.Add(next, false);
  }
  const Json logprobs = Json::parse(reply.WholeAnswer())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::array({"<|im_start|>", "a"}));
  EXPECT_EQ(logprobs["text_offset"], Json::array({0, 0}));
}

TEST(ApiErrorTest, EveryCodeHasItsHttpStatus) {
  const std::pair<absl::Status, int> cases[] = {
      {InvalidArgument("x"), 400}, {FailedPrecondition("x"), 400},
      {Unauthenticated("x"), 401}, {PermissionDenied("x"), 403},
      {NotFound("x"), 404},        {ResourceExhausted("x"), 507},
      {Unavailable("x"), 503},     {DeadlineExceeded("x"), 504},
      {Internal("x"), 500},        {DataLoss("x"), 500},
      {Aborted("x"), 500},         {absl::OutOfRangeError("x"), 413}};
  for (const auto& [status, http_status] : cases) {
    const HttpReply reply = ErrorReply(status);
    EXPECT_EQ(reply.status, http_status);
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["message"], "x");
    EXPECT_TRUE(error["param"].is_null());
    EXPECT_EQ(error["code"], http_status == 507 ? Json("insufficient_storage") : Json());
    EXPECT_EQ(error["type"] == "server_error", http_status >= 500);
  }
  EXPECT_EQ(ErrorReply(Unavailable("x")).headers.front().first, "Retry-After");
  EXPECT_EQ(ErrorReply(429, ResourceExhausted("x")).headers.front().first, "Retry-After");
  // Waiting frees no storage.
  EXPECT_TRUE(ErrorReply(ResourceExhausted("x")).headers.empty());
  const Json bad = Json::parse(ErrorReply(InvalidArgument("\xff")).body);
  EXPECT_EQ(bad["error"]["message"], "\uFFFD");
}

}  // namespace
}  // namespace cairn::compute
