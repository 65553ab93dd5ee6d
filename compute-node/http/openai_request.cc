#include "compute-node/http/openai_request.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compute-node/http/api_error.h"
#include "compute-node/http/json_reader.h"
#include "compute-node/model/sampler/log_probabilities.h"
#include "compute-node/model/sampler/sampler_penalties.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kSeedZero = 0x5eed;
// Of what a message of an error repeats; no role has so many.
constexpr std::size_t kQuotedBytesMax = 64;
// proto3 takes 0 for "not set", which is 1 here: the smallest share keeps the most likely token.
constexpr double kShareMin = 1e-6;

// What would change the answer.
constexpr std::array kRefused = {
    "tools",        "functions", "function_call", "audio",        "prediction",
    "suffix",       "grammar",   "json_schema",   "image_data",   "web_search_options",
    "input_prefix", "mirostat",  "guided_json",   "guided_regex", "guided_grammar",
};

// What else is looked at: other fields are not even kept.
constexpr std::array kRead = {
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "modalities",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "typical_p",
};

std::span<const std::string_view> KeptFields() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all(kRead.begin(), kRead.end());
    all.insert(all.end(), kRefused.begin(), kRefused.end());
    return all;
  }();
  return names;
}

// Some clients send what means "without it".
bool SaysNothing(const Json& field) {
  if (field.is_boolean()) return !field.get<bool>();
  if (field.is_number()) return field.get<double>() == 0;
  if (field.is_string()) return field.get_ref<const std::string&>().empty() || field == "none";
  return field.empty();
}

absl::Status RefuseFields(const Json& body) {
  for (const char* name : kRefused) {
    const Json* field = FindField(body, name);
    if (field != nullptr && !SaysNothing(*field)) {
      return FieldError(name, "cairn-compute-node does not support it: leave it out");
    }
  }
  const Json* choice = FindField(body, "tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    return FieldError("tool_choice", "there are no tools: leave it out");
  }
  const Json* format = FindField(body, "response_format");
  if (format != nullptr && !(format->is_object() && format->value("type", Json()) == "text")) {
    return FieldError("response_format", "only {\"type\": \"text\"} is supported");
  }
  const Json* modalities = FindField(body, "modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"})) {
    return FieldError("modalities", "only [\"text\"] is supported");
  }
  for (const char* name : {"n", "best_of"}) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count,
                           ReadInteger(body, name, 0, INT64_MAX));
    if (count.value_or(1) != 1) return FieldError(name, "only one answer is generated: give 1");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::optional<bool> echo, ReadBool(body, "echo"));
  if (echo.value_or(false)) return FieldError("echo", "the prompt is not repeated: leave it out");
  return absl::OkStatus();
}

// Text, or the text of all parts.
absl::StatusOr<std::string> ReadContent(const Json& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(name, "it must be a string, or an array of {\"type\": \"text\"} parts");
  }
  std::string text;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.value("type", Json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text)
      return FieldError(name, "only parts {\"type\": \"text\", \"text\": ...} are taken");
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

absl::Status ReadMessage(const Json& message, const std::string& name, v1::ChatMessage& out) {
  const Json* role = message.is_object() ? FindField(message, "role") : nullptr;
  if (role == nullptr || !role->is_string()) {
    return FieldError(name, "it must be an object with role and content");
  }
  const std::string said = role->get_ref<const std::string&>().substr(0, kQuotedBytesMax);
  // What OpenAI's newer models call it.
  out.set_role(said == "developer" ? "system" : said);
  if (out.role() != "system" && out.role() != "user" && out.role() != "assistant") {
    return FieldError(name + ".role",
                      fmt::format("'{}' is not supported: system, developer, user and assistant "
                                  "are",
                                  said));
  }
  for (const char* call : {"tool_calls", "function_call", "audio"}) {
    const Json* field = FindField(message, call);
    if (field != nullptr && !SaysNothing(*field)) {
      return FieldError(fmt::format("{}.{}", name, call), "it is not supported: leave it out");
    }
  }
  const Json* content = FindField(message, "content");
  // How some programs keep an answer of which nothing came.
  if (content == nullptr && out.role() == "assistant") return absl::OkStatus();
  if (content == nullptr) return FieldError(name + ".content", "it is missing");
  CAIRN_ASSIGN_OR_RETURN(*out.mutable_content(), ReadContent(*content, name + ".content"));
  return absl::OkStatus();
}

absl::Status ReadMessages(const Json& body, v1::GenerateRequest& request) {
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return FieldError("messages", "it must be an array of at least one message");
  }
  for (const Json& message : *messages) {
    const std::string name = fmt::format("messages[{}]", request.messages().messages_size());
    CAIRN_RETURN_IF_ERROR(ReadMessage(message, name, *request.mutable_messages()->add_messages()));
  }
  if (request.messages().messages().rbegin()->role() == "assistant") {
    return FieldError("messages", "the last is the assistant's: end with what it is to answer");
  }
  return absl::OkStatus();
}

bool IsTokenId(const Json& id) {
  return id.is_number_unsigned() && id.get<std::uint64_t>() <= std::uint64_t{INT32_MAX};
}

absl::Status ReadPrompt(const Json& body, v1::GenerateRequest& request) {
  const Json* prompt = FindField(body, "prompt");
  if (prompt == nullptr) return FieldError("prompt", "it is missing: give text or token ids");
  // A completion's prompt is the caller's own form, whose markup is meant.
  request.set_parse_special(true);
  if (prompt->is_string()) {
    request.set_text(prompt->get<std::string>());
    return absl::OkStatus();
  }
  if (!prompt->is_array() || prompt->empty()) {
    return FieldError("prompt", "it must be text or an array of token ids");
  }
  if (prompt->size() == 1 && prompt->front().is_string()) {
    request.set_text(prompt->front().get<std::string>());
    return absl::OkStatus();
  }
  const bool of_prompts = prompt->front().is_string() || prompt->front().is_array();
  if (of_prompts && prompt->size() > 1) {
    return FieldError("prompt", "several prompts are not supported: send a request for each");
  }
  for (const Json& id : of_prompts ? prompt->front() : *prompt) {
    if (!IsTokenId(id)) {
      return FieldError("prompt", "its token ids must be whole numbers from 0");
    }
    request.mutable_tokens()->add_ids(id.get<std::int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadLength(const Json& body, ApiKind kind, v1::GenerateRequest& request) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  std::int64_t tokens = kind == ApiKind::kChat ? kAll : kCompletionTokensMaxDefault;
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count,
                           ReadInteger(body, name, -1, INT64_MAX));
    if (count == 0) return FieldError(name, "it must be at least 1, or -1 for no limit");
    // -1: what other local engines take for no limit.
    if (count.has_value()) tokens = *count < 0 ? kAll : std::min(*count, kAll);
  }
  request.set_tokens_max(static_cast<std::int32_t>(tokens));
  return absl::OkStatus();
}

absl::Status ReadStopTexts(const Json& body, v1::GenerateRequest& request) {
  const Json* stop = FindField(body, "stop");
  if (stop == nullptr) return absl::OkStatus();
  const Json texts = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!texts.is_array()) return FieldError("stop", "it must be text or an array of texts");
  for (const Json& text : texts) {
    if (!text.is_string()) return FieldError("stop", "it must be text or an array of texts");
    // An empty one is a field of a form that was not filled in.
    if (text != "") request.add_stop(text.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadStopTokens(const Json& body, v1::GenerateRequest& request) {
  const Json* ids = FindField(body, "stop_token_ids");
  if (ids == nullptr) return absl::OkStatus();
  constexpr const char* kWhat = "it must be an array of token ids";
  if (!ids->is_array()) return FieldError("stop_token_ids", kWhat);
  for (const Json& id : *ids) {
    if (!IsTokenId(id)) return FieldError("stop_token_ids", kWhat);
    request.add_stop_token_ids(id.get<std::int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadBias(const Json& body, v1::Sampling& sampling) {
  const Json* biases = FindField(body, "logit_bias");
  if (biases == nullptr) return absl::OkStatus();
  constexpr const char* kWhat = "it must be an object of token ids and numbers from -100 to 100";
  if (!biases->is_object()) return FieldError("logit_bias", kWhat);
  for (const auto& [key, bias] : biases->items()) {
    std::int32_t id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || !bias.is_number() ||
        !(std::abs(bias.get<double>()) <= kLogitBiasMax)) {
      return FieldError("logit_bias", kWhat);
    }
    v1::LogitBias& out = *sampling.add_logit_bias();
    out.set_id(id);
    out.set_bias(bias.get<float>());
  }
  return absl::OkStatus();
}

absl::Status ReadSeed(const Json& body, v1::Sampling& sampling) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::int64_t> seed,
                         ReadInteger(body, "seed", INT64_MIN, INT64_MAX));
  // -1 is what other local engines take for a random one, as the proto takes 0.
  if (!seed.has_value() || *seed == -1) return absl::OkStatus();
  sampling.set_seed(static_cast<std::uint64_t>(*seed == 0 ? kSeedZero : *seed));
  return absl::OkStatus();
}

absl::Status ReadSamplingFields(const Json& body, v1::Sampling& sampling) {
  struct Number {
    const char* name;
    double min;
    double max;
    void (v1::Sampling::*set)(float);
    double least;  // what smaller values become
  };
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  static constexpr std::array kNumbers = {
      Number{"temperature", 0, 10, &v1::Sampling::set_temperature, kNone},
      Number{"top_p", 0, 1, &v1::Sampling::set_top_p, kShareMin},
      Number{"min_p", 0, 1, &v1::Sampling::set_min_p, kNone},
      Number{"typical_p", 0, 1, &v1::Sampling::set_typical_p, kShareMin},
      Number{"presence_penalty", -kPenaltyMax, kPenaltyMax, &v1::Sampling::set_presence_penalty,
             kNone},
      Number{"frequency_penalty", -kPenaltyMax, kPenaltyMax, &v1::Sampling::set_frequency_penalty,
             kNone},
      Number{"repeat_penalty", kRepetitionPenaltyMin, kRepetitionPenaltyMax,
             &v1::Sampling::set_repetition_penalty, kNone},
      Number{"repetition_penalty", kRepetitionPenaltyMin, kRepetitionPenaltyMax,
             &v1::Sampling::set_repetition_penalty, kNone},
  };
  sampling.set_temperature(1);
  for (const Number& number : kNumbers) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<double> value,
                           ReadNumber(body, number.name, number.min, number.max));
    if (value) (sampling.*number.set)(static_cast<float>(std::max(*value, number.least)));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::int64_t> top_k,
                         ReadInteger(body, "top_k", -1, INT32_MAX));
  sampling.set_top_k(static_cast<std::int32_t>(std::max<std::int64_t>(0, top_k.value_or(0))));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::int64_t> last,
                         ReadInteger(body, "repeat_last_n", -1, kPenaltyLastTokensMax));
  if (last.has_value()) sampling.set_penalty_last_tokens(static_cast<std::int32_t>(*last));
  if (last == 0) {
    sampling.clear_repetition_penalty();
    sampling.clear_presence_penalty();
    sampling.clear_frequency_penalty();
  }
  CAIRN_RETURN_IF_ERROR(ReadSeed(body, sampling));
  return ReadBias(body, sampling);
}

absl::Status ReadLogprobs(const Json& body, ApiKind kind, v1::GenerateRequest& request) {
  std::optional<std::int64_t> top;
  if (kind == ApiKind::kChat) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<bool> wanted, ReadBool(body, "logprobs"));
    CAIRN_ASSIGN_OR_RETURN(top, ReadInteger(body, "top_logprobs", 0, kTopLogProbabilitiesMax));
    request.set_logprobs(wanted.value_or(false));
    if (top.value_or(0) > 0 && !request.logprobs()) {
      return FieldError("top_logprobs", "it needs \"logprobs\": true");
    }
  } else {
    CAIRN_ASSIGN_OR_RETURN(top, ReadInteger(body, "logprobs", 0, kTopLogProbabilitiesMax));
    request.set_logprobs(top.has_value());
  }
  request.set_top_logprob_count(static_cast<std::int32_t>(top.value_or(0)));
  return absl::OkStatus();
}

absl::Status ReadStream(const Json& body, ApiRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<bool> stream, ReadBool(body, "stream"));
  request.stream = stream.value_or(false);
  const Json* options = FindField(body, "stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return FieldError("stream_options", "it must be an object");
  CAIRN_ASSIGN_OR_RETURN(const std::optional<bool> usage, ReadBool(*options, "include_usage"));
  request.include_usage = usage.value_or(false);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view text,
                                           MemoryClaim& memory) {
  CAIRN_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text, KeptFields(), memory));
  ApiRequest request;
  request.kind = kind;
  const Json* model = FindField(body, "model");
  if (model != nullptr && !model->is_string()) return FieldError("model", "it must be a string");
  CAIRN_RETURN_IF_ERROR(RefuseFields(body));
  CAIRN_RETURN_IF_ERROR(kind == ApiKind::kChat ? ReadMessages(body, request.generate)
                                               : ReadPrompt(body, request.generate));
  CAIRN_RETURN_IF_ERROR(ReadLength(body, kind, request.generate));
  CAIRN_RETURN_IF_ERROR(ReadStopTexts(body, request.generate));
  CAIRN_RETURN_IF_ERROR(ReadStopTokens(body, request.generate));
  CAIRN_RETURN_IF_ERROR(ReadSamplingFields(body, *request.generate.mutable_sampling()));
  CAIRN_RETURN_IF_ERROR(ReadLogprobs(body, kind, request.generate));
  CAIRN_RETURN_IF_ERROR(ReadStream(body, request));
  return request;
}

}  // namespace cairn::compute
