#include "compute-node/http/openai_reply.h"

#include <algorithm>
#include <utility>

namespace cairn::compute {
namespace {

std::string Dump(const OrderedJson& json) {
  // Parts of characters in the texts of single tokens.
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Characters whose first byte is in `text`.
std::int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

OrderedJson ToChatLogprob(const v1::TokenLogprob& token) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : token.text()) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.text()}, {"logprob", token.logprob()}, {"bytes", std::move(bytes)}};
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
    AddChunk({{"index", 0},
              {"delta", {{"role", "assistant"}, {"content", ""}}},
              {"logprobs", nullptr},
              {"finish_reason", nullptr}});
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
          {"prompt_tokens_details", {{"cached_tokens", finished_.reused_token_count()}}}};
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
  OrderedJson top_by_text = OrderedJson::object();
  for (const v1::TokenLogprob& top : token.top_logprobs()) {
    top_by_text[top.text()] = top.logprob();
  }
  logprobs_list_["tokens"].push_back(token.logprob().text());
  logprobs_list_["token_logprobs"].push_back(token.logprob().logprob());
  logprobs_list_["top_logprobs"].push_back(std::move(top_by_text));
  logprobs_list_["text_offset"].push_back(text_offset_);
  text_offset_ += CountCharacters(token.logprob().text());
}

void OpenAiReply::AddChunk(OrderedJson choice) {
  OrderedJson chunk = Head(/*chunk=*/true);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (include_usage_) chunk["usage"] = nullptr;
  chunks_ += "data: " + Dump(chunk) + "\n\n";
}

void OpenAiReply::AddTextChunk() {
  OrderedJson choice = {{"index", 0}};
  if (kind_ == ApiKind::kChat) {
    choice["delta"] = {{"content", std::exchange(text_, std::string())}};
  } else {
    choice["text"] = std::exchange(text_, std::string());
  }
  choice["logprobs"] = LogprobsOrNull();
  choice["finish_reason"] = nullptr;
  logprobs_list_ = nullptr;
  AddChunk(std::move(choice));
}

void OpenAiReply::AddLastChunks() {
  OrderedJson choice = {{"index", 0}};
  if (kind_ == ApiKind::kChat) {
    choice["delta"] = OrderedJson::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = ToFinishReason(finished_.reason());
  AddChunk(std::move(choice));
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
  OrderedJson choice = {{"index", 0}};
  if (kind_ == ApiKind::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", text_}, {"refusal", nullptr}};
  } else {
    choice["text"] = text_;
  }
  choice["logprobs"] = LogprobsOrNull();
  choice["finish_reason"] = ToFinishReason(finished_.reason());
  OrderedJson answer = Head(/*chunk=*/false);
  answer["choices"] = OrderedJson::array({std::move(choice)});
  answer["usage"] = Usage();
  answer["timings"] = Timings();
  return Dump(answer);
}

}  // namespace cairn::compute
