#include "compute-node/http/openai_request.h"

#include <gtest/gtest.h>

#include "compute-node/http/api_error.h"
#include "compute-node/http/json_reader.h"
#include "tests/tools/says.h"

namespace cairn::compute {
namespace {

constexpr const char* kHello = R"("messages": [{"role": "user", "content": "hello"}])";

absl::StatusOr<Json> ParseJson(const std::string& body) {
  MemoryClaim memory;
  return ParseJsonObject(body, {}, memory);
}

absl::StatusOr<ApiRequest> Parse(ApiKind kind, const std::string& body) {
  MemoryClaim memory;
  return ParseApiRequest(kind, body, memory);
}

ApiRequest Chat(const std::string& fields) {
  absl::StatusOr<ApiRequest> request =
      Parse(ApiKind::kChat, fmt::format("{{{}{}}}", kHello, fields));
  EXPECT_TRUE(request.ok()) << fields << ": " << Message(request.status());
  return request.ok() ? *request : ApiRequest();
}

ApiRequest Completion(const std::string& fields) {
  absl::StatusOr<ApiRequest> request = Parse(ApiKind::kCompletion, fmt::format("{{{}}}", fields));
  EXPECT_TRUE(request.ok()) << fields << ": " << Message(request.status());
  return request.ok() ? *request : ApiRequest();
}

// The field that the error is about; "(none)" if it is about the whole, "(taken)" without an error.
std::string Refused(ApiKind kind, const std::string& body) {
  const absl::StatusOr<ApiRequest> request = Parse(kind, body);
  if (request.ok()) return "(taken)";
  const HttpReply reply = ErrorReply(request.status());
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_FALSE(error["message"].get<std::string>().empty());
  return error["param"].is_null() ? "(none)" : error["param"].get<std::string>();
}

std::string RefusedChat(const std::string& fields) {
  return Refused(ApiKind::kChat, fmt::format("{{{}, {}}}", kHello, fields));
}

TEST(OpenAiRequestTest, DefaultsAreOpenAis) {
  const ApiRequest chat = Chat("");
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(chat.generate.sampling().temperature(), 1);
  EXPECT_EQ(chat.generate.sampling().top_p(), 0);  // all
  EXPECT_EQ(chat.generate.sampling().seed(), 0);   // random
  EXPECT_EQ(chat.generate.tokens_max(), INT32_MAX);
  EXPECT_FALSE(chat.generate.parse_special());
  EXPECT_EQ(Completion(R"("prompt": "x")").generate.tokens_max(), kCompletionTokensMaxDefault);
}

TEST(OpenAiRequestTest, EveryFieldReachesTheGeneration) {
  const ApiRequest chat = Chat(R"(, "model": "any", "stream": true, "user": "me", "n": 1,
      "stream_options": {"include_usage": true}, "max_completion_tokens": 7, "temperature": 0.5,
      "top_p": 0.25, "stop": ["a", "b"], "presence_penalty": 1, "frequency_penalty": -1,
      "logit_bias": {"5": 2, "6": -100}, "logprobs": true, "top_logprobs": 3, "seed": 11,
      "top_k": 40, "min_p": 0.125, "typical_p": 0.75, "repeat_penalty": 1.5, "repeat_last_n": 99,
      "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
      "something_of_another_engine": {"x": [1, 2]}, "function_call": null)");
  EXPECT_TRUE(chat.stream);
  EXPECT_TRUE(chat.include_usage);
  const v1::GenerateRequest& generate = chat.generate;
  EXPECT_EQ(generate.tokens_max(), 7);
  ASSERT_EQ(generate.stop_size(), 2);
  EXPECT_EQ(generate.stop(1), "b");
  EXPECT_TRUE(generate.logprobs());
  EXPECT_EQ(generate.top_logprob_count(), 3);
  const v1::Sampling& sampling = generate.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5F);
  EXPECT_EQ(sampling.top_p(), 0.25F);
  EXPECT_EQ(sampling.presence_penalty(), 1);
  EXPECT_EQ(sampling.frequency_penalty(), -1);
  EXPECT_EQ(sampling.seed(), 11U);
  EXPECT_EQ(sampling.top_k(), 40);
  EXPECT_EQ(sampling.min_p(), 0.125F);
  EXPECT_EQ(sampling.typical_p(), 0.75F);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5F);
  EXPECT_EQ(sampling.penalty_last_tokens(), 99);
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(1).id(), 6);
  EXPECT_EQ(sampling.logit_bias(1).bias(), -100);
}

TEST(OpenAiRequestTest, ContentIsTextOrPartsOfText) {
  const absl::StatusOr<ApiRequest> request = Parse(ApiKind::kChat, R"({"messages": [
      {"role": "developer", "content": "be short"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": [], "name": "x"},
      {"role": "user", "content": ""}]})");
  ASSERT_TRUE(request.ok()) << Message(request.status());
  const v1::ChatMessages& messages = request->generate.messages();
  ASSERT_EQ(messages.messages_size(), 4);
  EXPECT_EQ(messages.messages(0).role(), "system");
  EXPECT_EQ(messages.messages(1).content(), "ab");
  EXPECT_EQ(messages.messages(3).content(), "");
}

TEST(OpenAiRequestTest, APromptIsTextOrTokensOfOneGeneration) {
  EXPECT_EQ(Completion(R"("prompt": "x")").generate.text(), "x");
  EXPECT_TRUE(Completion(R"("prompt": "x")").generate.parse_special());
  EXPECT_EQ(Completion(R"("prompt": ["x"])").generate.text(), "x");
  EXPECT_EQ(Completion(R"("prompt": [1, 2, 3])").generate.tokens().ids_size(), 3);
  EXPECT_EQ(Completion(R"("prompt": [[1, 2]])").generate.tokens().ids(1), 2);
  for (const char* prompt : {"null", "[]", R"(["a", "b"])", "[[1], [2]]", "[1, \"a\"]", "[-1]",
                             "[1.5]", "[4294967296]", "{}", "7", "[[]]"}) {
    const std::string field =
        Refused(ApiKind::kCompletion, fmt::format(R"({{"prompt": {}}})", prompt));
    EXPECT_EQ(field, prompt == std::string("[[]]") ? "(taken)" : "prompt") << prompt;
  }
  const auto says_several = [](const char* prompt) {
    const auto request = Parse(ApiKind::kCompletion, fmt::format(R"({{"prompt": {}}})", prompt));
    return test::Says(request.status(), "several prompts");
  };
  for (const char* prompt : {R"(["a", "b"])", R"(["a", 1])", "[[1], [2]]", "[[1], 2]"}) {
    EXPECT_TRUE(says_several(prompt)) << prompt;
  }
  for (const char* prompt : {R"([1, "a"])", R"([["a"]])", "[1, [2]]", "[-1]"}) {
    EXPECT_FALSE(says_several(prompt)) << prompt;
  }
}

TEST(OpenAiRequestTest, OtherEnginesWordsForNoLimitAreUnderstood) {
  EXPECT_EQ(Chat(R"(, "max_tokens": -1)").generate.tokens_max(), INT32_MAX);
  EXPECT_EQ(Chat(R"(, "max_tokens": 5000000000)").generate.tokens_max(), INT32_MAX);
  EXPECT_EQ(Chat(R"(, "top_k": -1)").generate.sampling().top_k(), 0);
  EXPECT_EQ(Chat(R"(, "seed": -1)").generate.sampling().seed(), 0U);
  EXPECT_NE(Chat(R"(, "seed": 0)").generate.sampling().seed(), 0U);
  // 0 would be "all" in the daemon's own protocol.
  EXPECT_GT(Chat(R"(, "top_p": 0)").generate.sampling().top_p(), 0);
  const v1::Sampling off =
      Chat(R"(, "repeat_last_n": 0, "presence_penalty": 1)").generate.sampling();
  EXPECT_EQ(off.presence_penalty(), 0);
}

TEST(OpenAiRequestTest, AWholeNumberMayBeWrittenWithAPoint) {
  const v1::GenerateRequest generate =
      Chat(R"(, "max_tokens": 16.0, "seed": 4e1, "top_k": -1.0, "n": 1.0)").generate;
  EXPECT_EQ(generate.tokens_max(), 16);
  EXPECT_EQ(generate.sampling().seed(), 40U);
  EXPECT_EQ(generate.sampling().top_k(), 0);
  for (const char* number : {"1e300", "-1e300", "1e19", "0.5", "16.000001"}) {
    EXPECT_EQ(RefusedChat(fmt::format("\"max_tokens\": {}", number)), "max_tokens") << number;
  }
}

TEST(OpenAiRequestTest, WhatWasNotFilledInSaysNothing) {
  EXPECT_EQ(Chat(R"(, "stop": "")").generate.stop_size(), 0);
  EXPECT_EQ(Chat(R"(, "stop": ["", "a"])").generate.stop_size(), 1);
  const absl::StatusOr<ApiRequest> request = Parse(ApiKind::kChat, R"({"messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": null},
      {"role": "user", "content": "b"}]})");
  ASSERT_TRUE(request.ok()) << Message(request.status());
  EXPECT_EQ(request->generate.messages().messages(1).content(), "");
}

TEST(OpenAiRequestTest, StopTokensAreIds) {
  const v1::GenerateRequest generate = Chat(R"(, "stop_token_ids": [5, 0])").generate;
  EXPECT_EQ(
      std::vector<std::int32_t>(generate.stop_token_ids().begin(), generate.stop_token_ids().end()),
      (std::vector<std::int32_t>{5, 0}));
  EXPECT_EQ(Chat(R"(, "stop_token_ids": null)").generate.stop_token_ids_size(), 0);
}

TEST(OpenAiRequestTest, AFieldThatCannotBeFollowedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("functions": [{}])", "functions"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("response_format": "json")", "response_format"},
      {R"("modalities": ["text", "audio"])", "modalities"},
      {R"("audio": {"voice": "x"})", "audio"},
      {R"("n": 2)", "n"},
      {R"("n": 0)", "n"},
      {R"("best_of": 3)", "best_of"},
      {R"("echo": true)", "echo"},
      {R"("suffix": "x")", "suffix"},
      {R"("grammar": "root ::= x")", "grammar"},
      {R"("model": 7)", "model"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": 1)", "stream_options"},
      {R"("stream_options": {"include_usage": 1})", "include_usage"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": "5")", "max_tokens"},
      {R"("max_completion_tokens": -2)", "max_completion_tokens"},
      {R"("temperature": -1)", "temperature"},
      {R"("temperature": 11)", "temperature"},
      {R"("temperature": "hot")", "temperature"},
      {R"("top_p": 1.5)", "top_p"},
      {R"("min_p": -0.5)", "min_p"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("repeat_penalty": 0)", "repeat_penalty"},
      {R"("stop": 5)", "stop"},
      {R"("stop": ["a", 5])", "stop"},
      {R"("stop_token_ids": 5)", "stop_token_ids"},
      {R"("stop_token_ids": ["a"])", "stop_token_ids"},
      {R"("stop_token_ids": [-1])", "stop_token_ids"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"5": 101})", "logit_bias"},
      {R"("logit_bias": [5])", "logit_bias"},
      {R"("logprobs": 3)", "logprobs"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(RefusedChat(fields), name) << fields;
}

TEST(OpenAiRequestTest, AMessageThatCannotBeReadIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"7", "messages"},
      {"[]", "messages"},
      {"[7]", "messages[0]"},
      {R"([{"content": "x"}])", "messages[0]"},
      {R"([{"role": 1, "content": "x"}])", "messages[0]"},
      {R"([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}])",
       "messages[1].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content"},
      {R"([{"role": "assistant", "content": "x", "tool_calls": [1]}])", "messages[0].tool_calls"},
      {R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])", "messages"},
  };
  for (const auto& [messages, name] : cases) {
    EXPECT_EQ(Refused(ApiKind::kChat, fmt::format(R"({{"messages": {}}})", messages)), name);
  }
}

TEST(OpenAiRequestTest, WhatIsNoJsonObjectIsRefused) {
  for (const std::string& body :
       {std::string(), std::string("x"), std::string("[]"), std::string("{} {}"),
        std::string("{\"a\": \"\xff\"}"), std::string("{\"a\": 1e999}"), std::string("{\"a\""),
        std::string(64, '['), std::string("{\"a\": ") + std::string(1 << 20, '[')}) {
    EXPECT_EQ(Refused(ApiKind::kChat, body), "(none)") << body.substr(0, 40);
  }
  for (const char* body : {R"({"a": 1, b})", R"({"a": 123456e99999})", R"({"a": "\ud800"})"}) {
    const std::string message = Message(ParseJson(body).status());
    const std::string end = fmt::format("of {}", std::string_view(body).size());
    EXPECT_TRUE(message.ends_with(end)) << message;
    EXPECT_EQ(message.find("byte 0"), std::string::npos) << message;
  }
  EXPECT_EQ(Message(ParseJson(R"({"a": 1, b})").status()),
            "the body is not valid JSON in UTF-8: see byte 10 of 11");
  EXPECT_EQ(Message(ParseJson(R"({"a": 1)").status()),
            "the body is not valid JSON: it ends too early, after 7 bytes");
  EXPECT_EQ(Message(ParseJson("").status()),
            "the body is not valid JSON: it ends too early, after 0 bytes");
  EXPECT_EQ(Message(ParseJson(R"({"a": 1e999})").status()),
            "the body has a number that is too large: see byte 11 of 12");
  EXPECT_EQ(Message(ParseJson(std::string("{\"a\": 1}\0", 9)).status()),
            "the body is not valid JSON: byte 9 of 9 is NUL");
}

TEST(OpenAiRequestTest, ANameThatIsTwiceInAnObjectIsRefused) {
  for (const char* body :
       {R"({"prompt": "a", "prompt": "b"})", R"({"prompt": "a", "prom\u0070t": "b"})",
        R"({"prompt": null, "prompt": "b"})",
        R"({"prompt": "a", "logit_bias": {"1": 2, "1": 3}})"}) {
    EXPECT_NE(Message(Parse(ApiKind::kCompletion, body).status()).find("twice in one object"),
              std::string::npos)
        << body;
  }
  EXPECT_EQ(Refused(ApiKind::kChat,
                    R"({"messages": [{"role": "user", "role": "system", "content": "a"}]})"),
            "(none)");
  // What is not looked at may be anything; each object has its own names.
  EXPECT_EQ(Refused(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "a"},
      {"role": "user", "content": "b"}], "user": 1, "user": {"a": 1, "a": 2}})"),
            "(taken)");
}

// `count` times the same, with commas between.
std::string Repeat(std::string_view text, int count) {
  std::string out(text);
  for (int i = 1; i < count; ++i) out += fmt::format(",{}", text);
  return out;
}

// What the request claims beside its text.
std::int64_t ClaimOf(ApiKind kind, const std::string& body) {
  MemoryBudget budget(std::int64_t{1} << 30);
  MemoryClaim memory(budget);
  const absl::StatusOr<ApiRequest> request = ParseApiRequest(kind, body, memory);
  EXPECT_TRUE(request.ok()) << request.status();
  return memory.bytes();
}

TEST(OpenAiRequestTest, WhatIsIgnoredTakesNoMemory) {
  const std::string pairs = Repeat(R"("a":{"b":[]})", 100000);
  EXPECT_EQ(ClaimOf(ApiKind::kCompletion,
                    fmt::format(R"({{"x":{{{}}},"prompt":"p","y":[{}],"z":[[{}]]}})", pairs,
                                Repeat("[]", 100000), Repeat("1", 100000))),
            0);
  // Not even where a field that is known is inside.
  EXPECT_EQ(ClaimOf(ApiKind::kCompletion, fmt::format(R"({{"x":{{"messages":[{}]}},"prompt":"p"}})",
                                                      Repeat("{}", 100000))),
            0);
}

TEST(OpenAiRequestTest, WhatIsKeptIsClaimedAsItIsRead) {
  const std::int64_t messages = ClaimOf(
      ApiKind::kChat,
      fmt::format(R"({{"messages":[{}]}})", Repeat(R"({"role":"user","content":"a"})", 10000)));
  EXPECT_GT(messages, 10000 * kJsonObjectBytes);
  EXPECT_LT(messages, 20000 * kJsonObjectBytes);
  const std::int64_t ids =
      ClaimOf(ApiKind::kCompletion, fmt::format(R"({{"prompt":[{}]}})", Repeat("1", 100000)));
  EXPECT_GE(ids, 100000 * kJsonValueBytes - kJsonFreeBytes);
  EXPECT_LT(ids, 100000 * kJsonValueBytes + kJsonFreeBytes);
}

TEST(OpenAiRequestTest, ARequestForWhichThereIsNoMemoryIsRefusedInTheMiddle) {
  const std::string body =
      fmt::format(R"({{"messages":[{}]}})", Repeat(R"({"role":"user","content":"a"})", 10000));
  MemoryBudget budget(8 << 20);
  MemoryClaim memory(budget);
  const absl::Status too_large = ParseApiRequest(ApiKind::kChat, body, memory).status();
  EXPECT_EQ(ErrorReply(too_large).status, 413) << too_large;
  EXPECT_LE(memory.bytes(), budget.claim_bytes_max());
  memory.Release();
  MemoryClaim others(budget);
  ASSERT_TRUE(others.Resize(5 << 20).ok());
  const HttpReply full = ErrorReply(ParseApiRequest(ApiKind::kChat, body, memory).status());
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.headers.front().first, "Retry-After");
}

TEST(OpenAiRequestTest, AnErrorDoesNotRepeatAllOfWhatWasSent) {
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"{}","content":"a"}}]}})", std::string(1 << 20, 'r'));
  const absl::Status status = Parse(ApiKind::kChat, body).status();
  EXPECT_LT(status.message().size(), 200U);
  EXPECT_LT(ErrorReply(InvalidArgument("{}", body)).body.size(), 4096U);
}

}  // namespace
}  // namespace cairn::compute
