#include "compute-node/http/openai_reply.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/utf8.h"

namespace cairn::compute {
namespace {

std::string Dump(const OrderedJson& json) {
  // Names come from the model's file.
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Characters whose first byte is in `text`.
std::int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

// Bytes that are no text of their own, as OpenAI writes them: \xe2\x80. No two look alike.
std::string EscapeBytes(const std::string& bytes) {
  std::string escaped;
  for (const char c : bytes) {
    const bool plain = c >= ' ' && c <= '~' && c != '\\';
    escaped += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return escaped;
}

bool IsUtf8(const std::string& bytes) { return Utf8GoodBytes(bytes) == bytes.size(); }

OrderedJson ToChatLogprob(const v1::TokenLogprob& token) {
  // Those of all tokens in a row are those of the text.
  OrderedJson bytes = OrderedJson::array();
  if (!token.special()) {
    for (const char c : token.text()) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", IsUtf8(token.text()) ? token.text() : EscapeBytes(token.text())},
          {"logprob", token.logprob()},
          {"bytes", std::move(bytes)}};
}

std::string CompletionName(const v1::TokenLogprob& token) {
  return IsUtf8(token.text()) ? token.text() : "bytes:" + EscapeBytes(token.text());
}

// The likely tokens by their names, the most likely first; the chosen one is always among them,
// under the name that it has in the list of tokens. Another token with the same text is named by
// its id.
OrderedJson ToCompletionTop(const v1::Token& token) {
  const v1::TokenLogprob& chosen = token.logprob();
  std::vector<const v1::TokenLogprob*> tokens;
  for (const v1::TokenLogprob& top : token.top_logprobs()) {
    if (top.id() != chosen.id()) tokens.push_back(&top);
  }
  const auto place = std::find_if(tokens.begin(), tokens.end(), [&chosen](const auto* top) {
    return top->logprob() < chosen.logprob();
  });
  tokens.insert(place, &chosen);
  std::set<std::string> taken = {CompletionName(chosen)};
  OrderedJson by_name = OrderedJson::object();
  for (const v1::TokenLogprob* top : tokens) {
    std::string name = CompletionName(*top);
    if (top != &chosen && !taken.insert(name).second) name = fmt::format("token_id:{}", top->id());
    by_name[name] = top->logprob();
  }
  return by_name;
}

const char* ToFinishReason(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_END || reason == v1::FINISH_REASON_STOP ? "stop" : "length";
}

double ToMs(const google::protobuf::Duration& time) {
  return static_cast<double>(time.seconds()) * 1e3 + static_cast<double>(time.nanos()) / 1e6;
}

}  // namespace

OpenAiReply::OpenAiReply(const ApiRequest& request, ReplyHead head)
    : kind_(request.kind),
      stream_(request.stream),
      include_usage_(request.include_usage),
      logprobs_(request.generate.logprobs()),
      head_(std::move(head)) {}

void OpenAiReply::Add(const v1::GenerateEvent& event, bool end_token) {
  if (event.has_started() && stream_ && kind_ == ApiKind::kChat) {
    AddChunk(Choice({{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, nullptr));
  }
  if (event.has_token()) {
    text_ += event.token().text();
    if (logprobs_ && !end_token) AddLogprob(event.token());
    if (stream_ && (!text_.empty() || !logprobs_list_.empty())) AddTextChunk();
  }
  if (event.has_finished()) {
    finished_ = event.finished();
    if (stream_) AddLastChunks();
  }
}

std::string OpenAiReply::TakeChunks() { return std::exchange(chunks_, std::string()); }

OrderedJson OpenAiReply::Head(bool chunk) const {
  const char* object = kind_ == ApiKind::kCompletion ? "text_completion"
                       : chunk                       ? "chat.completion.chunk"
                                                     : "chat.completion";
  return {{"id", head_.id},
          {"object", object},
          {"created", head_.created_s},
          {"model", head_.model},
          {"system_fingerprint", head_.fingerprint}};
}

OrderedJson OpenAiReply::Usage() const {
  const std::int64_t prompt = finished_.reused_token_count() + finished_.prompt_token_count();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", finished_.generated_token_count()},
          {"total_tokens", prompt + finished_.generated_token_count()},
          {"prompt_tokens_details",
           {{"cached_tokens", finished_.reused_token_count()}, {"exact", finished_.exact()}}}};
}

OrderedJson OpenAiReply::Timings() const {
  return {{"queue_ms", ToMs(finished_.queue_time())},
          {"first_token_ms", ToMs(finished_.first_token_time())},
          {"prompt_ms", ToMs(finished_.prefill_time())},
          {"predicted_ms", ToMs(finished_.decode_time())}};
}

OrderedJson OpenAiReply::LogprobsOrNull() const {
  if (!logprobs_) return nullptr;
  if (kind_ == ApiKind::kChat) {
    return {{"content", logprobs_list_.is_null() ? OrderedJson::array() : logprobs_list_},
            {"refusal", nullptr}};
  }
  if (!logprobs_list_.is_null()) return logprobs_list_;
  return {{"tokens", OrderedJson::array()},
          {"token_logprobs", OrderedJson::array()},
          {"top_logprobs", OrderedJson::array()},
          {"text_offset", OrderedJson::array()}};
}

void OpenAiReply::AddLogprob(const v1::Token& token) {
  if (kind_ == ApiKind::kChat) {
    OrderedJson entry = ToChatLogprob(token.logprob());
    entry["top_logprobs"] = OrderedJson::array();
    for (const v1::TokenLogprob& top : token.top_logprobs()) {
      entry["top_logprobs"].push_back(ToChatLogprob(top));
    }
    logprobs_list_.push_back(std::move(entry));
    return;
  }
  logprobs_list_["tokens"].push_back(CompletionName(token.logprob()));
  logprobs_list_["token_logprobs"].push_back(token.logprob().logprob());
  logprobs_list_["top_logprobs"].push_back(ToCompletionTop(token));
  logprobs_list_["text_offset"].push_back(text_offset_);
  if (!token.logprob().special()) text_offset_ += CountCharacters(token.logprob().text());
}

void OpenAiReply::AddChunk(OrderedJson choice) {
  OrderedJson chunk = Head(/*chunk=*/true);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (include_usage_) chunk["usage"] = nullptr;
  chunks_ += "data: " + Dump(chunk) + "\n\n";
}

OrderedJson OpenAiReply::Choice(OrderedJson chat, OrderedJson text, OrderedJson logprobs,
                                OrderedJson finish_reason) const {
  const bool is_chat = kind_ == ApiKind::kChat;
  const char* name = !is_chat ? "text" : stream_ ? "delta" : "message";
  return {{"index", 0},
          {name, is_chat ? std::move(chat) : std::move(text)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish_reason)}};
}

void OpenAiReply::AddTextChunk() {
  const std::string text = std::exchange(text_, std::string());
  AddChunk(Choice({{"content", text}}, text, LogprobsOrNull(), nullptr));
  logprobs_list_ = nullptr;
}

void OpenAiReply::AddLastChunks() {
  AddChunk(Choice(OrderedJson::object(), "", nullptr, ToFinishReason(finished_.reason())));
  if (include_usage_) {
    OrderedJson chunk = Head(/*chunk=*/true);
    chunk["choices"] = OrderedJson::array();
    chunk["usage"] = Usage();
    chunk["timings"] = Timings();
    chunks_ += "data: " + Dump(chunk) + "\n\n";
  }
  chunks_ += "data: [DONE]\n\n";
}

std::string OpenAiReply::WholeAnswer() const {
  OrderedJson choice = Choice({{"role", "assistant"}, {"content", text_}, {"refusal", nullptr}},
                              text_, LogprobsOrNull(), ToFinishReason(finished_.reason()));
  OrderedJson answer = Head(/*chunk=*/false);
  answer["choices"] = OrderedJson::array({std::move(choice)});
  answer["usage"] = Usage();
  answer["timings"] = Timings();
  return Dump(answer);
}

}  // namespace cairn::compute
