#include "compute-node/service/generate_request.h"

#include <algorithm>
#include <random>

#include "compute-node/service/stored_sessions.h"

namespace cairn::compute {
namespace {

// As many as the text that ends a turn can have.
constexpr std::int32_t kEndTokensMax = 64;
constexpr int kStopTextsMax = 16;
constexpr std::int64_t kStopTextBytesMax = 256;
constexpr int kStopTokensMax = 256;
constexpr std::int64_t kTokensMaxDefault = 256;

std::uint64_t RandomSeed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// proto3 has no other default.
double OneIfNotSet(float value) { return value == 0 ? 1.0 : static_cast<double>(value); }

absl::Status ReadPenalties(const v1::Sampling& sampling, std::int64_t vocab_size,
                           PenaltyOptions& options) {
  options.repetition_penalty = OneIfNotSet(sampling.repetition_penalty());
  options.presence_penalty = static_cast<double>(sampling.presence_penalty());
  options.frequency_penalty = static_cast<double>(sampling.frequency_penalty());
  if (sampling.penalty_last_tokens() != 0) {
    options.penalty_last_tokens = sampling.penalty_last_tokens();
  }
  if (sampling.logit_bias_size() > kLogitBiasCountMax) {
    return InvalidArgument("sampling.logit_bias has {} tokens: at most {} are allowed",
                           sampling.logit_bias_size(), kLogitBiasCountMax);
  }
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    if (bias.id() < 0 || bias.id() >= vocab_size) {
      return InvalidArgument("sampling.logit_bias has token {}: ids are 0 to {}", bias.id(),
                             vocab_size - 1);
    }
    options.logit_bias.push_back({bias.id(), static_cast<double>(bias.bias())});
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::Sampling& sampling, std::int64_t vocab_size,
                          SamplerOptions& options) {
  if (!(sampling.temperature() >= 0 && sampling.temperature() <= 10)) {
    return InvalidArgument("sampling.temperature is {}: it must be 0 to 10",
                           sampling.temperature());
  }
  options.temperature = sampling.temperature();
  options.top_k = sampling.top_k();
  options.top_p = OneIfNotSet(sampling.top_p());
  options.min_p = static_cast<double>(sampling.min_p());
  options.typical_p = OneIfNotSet(sampling.typical_p());
  options.seed = sampling.seed() != 0 ? sampling.seed() : RandomSeed();
  CAIRN_RETURN_IF_ERROR(ReadPenalties(sampling, vocab_size, options.penalties));
  return Annotate(options.Validate(), "sampling");
}

absl::Status ReadLogProbabilities(const v1::GenerateRequest& request, TurnRequest& turn) {
  const std::int32_t count = request.top_logprob_count();
  if (count < 0 || count > kTopLogProbabilitiesMax) {
    return InvalidArgument("top_logprob_count is {}: it must be 0 to {}", count,
                           kTopLogProbabilitiesMax);
  }
  if (count > 0 && !request.logprobs()) {
    return InvalidArgument("top_logprob_count is {}, but logprobs is not set: set it too", count);
  }
  turn.log_probabilities = request.logprobs();
  turn.top_log_probability_count = count;
  return absl::OkStatus();
}

absl::Status ReadStop(const v1::GenerateRequest& request, std::int64_t vocab_size,
                      TurnRequest& turn) {
  if (request.stop_size() > kStopTextsMax) {
    return InvalidArgument("stop has {} texts: at most {} are allowed", request.stop_size(),
                           kStopTextsMax);
  }
  for (const std::string& text : request.stop()) {
    if (text.empty() || std::ssize(text) > kStopTextBytesMax) {
      return InvalidArgument("a stop text has {} bytes: it must have 1 to {}", text.size(),
                             kStopTextBytesMax);
    }
    turn.stop.push_back(text);
  }
  if (request.stop_token_ids_size() > kStopTokensMax) {
    return InvalidArgument("stop_token_ids has {} tokens: at most {} are allowed",
                           request.stop_token_ids_size(), kStopTokensMax);
  }
  for (const std::int32_t id : request.stop_token_ids()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("stop_token_ids has {}: ids are 0 to {}", id, vocab_size - 1);
    }
    turn.stop_tokens.push_back(id);
  }
  return absl::OkStatus();
}

// Sampling, limits, stop texts, log probabilities, how the prompt is computed.
absl::Status ReadTurnOptions(const v1::GenerateRequest& request, std::int64_t vocab_size,
                             TurnRequest& turn) {
  turn.ignore_end = request.ignore_eos();
  turn.tokens_max = request.tokens_max() == 0 ? kTokensMaxDefault
                                              : std::max<std::int64_t>(request.tokens_max(), 0);
  if (request.prefill_tokens_max() < 0) {
    return InvalidArgument("prefill_tokens_max is {}: it must be at least 1, or 0 for all",
                           request.prefill_tokens_max());
  }
  turn.prefill_tokens_max = request.prefill_tokens_max();
  turn.keep_random_state = request.sampling().seed() == 0;
  CAIRN_RETURN_IF_ERROR(ReadSampling(request.sampling(), vocab_size, turn.sampling));
  CAIRN_RETURN_IF_ERROR(ReadLogProbabilities(request, turn));
  return ReadStop(request, vocab_size, turn);
}

// A prompt of token ids.
absl::Status ReadTokens(const v1::TokenIds& tokens, std::int64_t vocab_size,
                        std::vector<std::int32_t>& prompt) {
  for (const std::int32_t id : tokens.ids()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("tokens.ids has {}: ids are 0 to {}", id, vocab_size - 1);
    }
  }
  prompt.assign(tokens.ids().begin(), tokens.ids().end());
  return absl::OkStatus();
}

}  // namespace

PolicyRequest ReadRetrieval(const v1::Retrieval& retrieval) {
  PolicyRequest request;
  if (!retrieval.policy().empty()) request.name = retrieval.policy();
  const auto read = [](auto value, auto& to) {
    if (value != 0) to = value;
  };
  read(retrieval.select_percent(), request.select_percent);
  read(retrieval.select_tokens_min(), request.select_tokens_min);
  read(retrieval.select_tokens_max(), request.select_tokens_max);
  read(retrieval.cluster_target_entries(), request.cluster_target_entries);
  read(retrieval.seed(), request.seed);
  if (retrieval.has_estimate_percent()) request.estimate_percent = retrieval.estimate_percent();
  if (retrieval.has_select_ahead()) request.select_ahead = retrieval.select_ahead();
  return request;
}

std::int64_t AskedTurn::message_bytes() const {
  std::int64_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += std::ssize(message.content);
  return bytes;
}

absl::Status GenerateRequestReader::ReadConversation(const v1::GenerateRequest& request,
                                                     AskedTurn& asked) const {
  if (request.conversation_id() < 0) {
    return InvalidArgument("conversation_id is {}: ids are positive", request.conversation_id());
  }
  asked.conversation = {SessionId(request.conversation_id()), request.conversation_uid()};
  CAIRN_RETURN_IF_ERROR(CheckUidBytes(asked.conversation.uid));
  if (request.has_conversation_token_count()) {
    asked.expected_token_count = request.conversation_token_count();
  }
  const bool is_new = asked.conversation.id.value() == 0;
  if (is_new && !asked.conversation.uid.empty()) {
    return InvalidArgument("conversation_uid is set without conversation_id: set both");
  }
  if (is_new) asked.identity = runtime_.served.base;
  asked.label = request.label();
  CAIRN_RETURN_IF_ERROR(CheckLabel(asked.label));
  asked.ephemeral = request.ephemeral();
  if (asked.ephemeral && !is_new) {
    return InvalidArgument(
        "ephemeral is set and conversation_id is {}: only a new conversation can be ephemeral",
        asked.conversation.id);
  }
  return absl::OkStatus();
}

absl::Status GenerateRequestReader::Read(const v1::GenerateRequest& request,
                                         AskedTurn& asked) const {
  CAIRN_RETURN_IF_ERROR(ReadConversation(request, asked));
  const bool is_new = asked.conversation.id.value() == 0;
  const std::int64_t vocab_size = runtime_.model->config().vocab_size;
  TurnRequest& turn = asked.turn;
  CAIRN_RETURN_IF_ERROR(ReadTurnOptions(request, vocab_size, turn));
  asked.policy = ReadRetrieval(request.retrieval());
  // On a conversation that exists the rest shows when it is open.
  const PolicyRequest checked = is_new ? asked.policy : PolicyRequest{.name = asked.policy.name};
  CAIRN_RETURN_IF_ERROR(Annotate(checked.On(runtime_.options.policy).Validate(), "retrieval"));
  if (request.has_tokens()) {
    CAIRN_RETURN_IF_ERROR(ReadTokens(request.tokens(), vocab_size, turn.prompt));
  } else if (request.has_text()) {
    if (std::ssize(request.text()) > kPromptBytesMax) {
      return InvalidArgument("text has {} bytes: at most {}", request.text().size(),
                             kPromptBytesMax);
    }
    turn.prompt =
        runtime_.tokenizer->Encode(request.text(), {.add_special = is_new,
                                                    .parse_special = request.parse_special(),
                                                    .tokens_max = runtime_.prompt_tokens_max()});
  } else if (request.has_messages()) {
    CAIRN_RETURN_IF_ERROR(ReadMessages(request.messages(), asked));
    // How they follow a conversation shows when it is open.
    if (!is_new) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(WriteMessages(ChatPosition::kFirst, asked));
  }
  if (turn.prompt.empty()) {
    return InvalidArgument("the prompt is empty: set text, tokens or messages");
  }
  return CheckContext(std::ssize(turn.prompt), /*held_count=*/0, turn.tokens_max > 0,
                      ContextTokensMax(runtime_.options, runtime_.model->config()));
}

absl::Status GenerateRequestReader::ReadMessages(const v1::ChatMessages& messages,
                                                 AskedTurn& asked) const {
  if (!runtime_.chat.ok()) {
    return FailedPrecondition("messages cannot be taken: {}", Message(runtime_.chat.status()));
  }
  std::int64_t bytes = 0;
  for (const v1::ChatMessage& message : messages.messages()) {
    bytes += std::ssize(message.content());
    asked.messages.push_back({message.role(), message.content()});
  }
  if (bytes > kPromptBytesMax) {
    return InvalidArgument("messages have {} bytes: at most {}", bytes, kPromptBytesMax);
  }
  if (asked.messages.empty()) return InvalidArgument("messages has none: give at least one");
  return absl::OkStatus();
}

absl::Status GenerateRequestReader::WriteMessages(ChatPosition position, AskedTurn& asked) const {
  const ChatTemplate& chat = *runtime_.chat;
  const Tokenizer& tokenizer = *runtime_.tokenizer;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces,
                         chat.Render(asked.messages, position, asked.turn.tokens_max > 0));
  std::vector<ChatMessage>().swap(asked.messages);
  asked.turn.prompt = tokenizer.EncodePieces(pieces, runtime_.prompt_tokens_max());
  // Some templates leave it to the tokenizer.
  const bool has_bos = !pieces.empty() && pieces.front().kind == PromptPiece::Kind::kBos;
  if (position == ChatPosition::kFirst && tokenizer.adds_bos() && !has_bos) {
    asked.turn.prompt.insert(asked.turn.prompt.begin(), tokenizer.bos_id());
  }
  if (!asked.turn.ignore_end) asked.turn.end_text = EndText();
  return absl::OkStatus();
}

std::string GenerateRequestReader::EndText() const {
  const std::string end(runtime_.chat->end_of_turn());
  const std::vector<std::int32_t> ids =
      runtime_.tokenizer->EncodePieces(std::vector<PromptPiece>{{PromptPiece::Kind::kMarkup, end}});
  const bool is_token = ids.size() == 1 && runtime_.tokenizer->IsEndOfGeneration(ids[0]);
  return is_token ? "" : end;
}

absl::Status GenerateRequestReader::WriteMessagesBehind(Conversation& conversation,
                                                        const StopSignal& stop,
                                                        AskedTurn& asked) const {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> last_tokens,
                         conversation.LastTokens(kEndTokensMax, stop));
  if (last_tokens.empty()) return WriteMessages(ChatPosition::kFirst, asked);
  return WriteMessages(EndsTurn(last_tokens) ? ChatPosition::kAfterEnd : ChatPosition::kOpen,
                       asked);
}

bool GenerateRequestReader::EndsTurn(const std::vector<std::int32_t>& last_tokens) const {
  const Tokenizer& tokenizer = *runtime_.tokenizer;
  if (tokenizer.IsEndOfGeneration(last_tokens.back())) return true;
  const std::string end = EndText();
  if (end.empty()) return false;
  std::string text;
  std::size_t last_begin = 0;
  for (const std::int32_t token : last_tokens) {
    last_begin = text.size();
    text += tokenizer.DecodePiece(token, /*render_special=*/true);
  }
  // The last token may go on behind the end.
  const std::size_t begin = text.rfind(end);
  return begin != std::string::npos && begin + end.size() > last_begin;
}

}  // namespace cairn::compute
