#include "clients/cpp/client_messages.h"

#include <chrono>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace cairn {
namespace {

std::chrono::nanoseconds FromProto(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

std::chrono::system_clock::time_point FromProto(const google::protobuf::Timestamp& time) {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos())));
}

void SetSampling(const GenerateOptions& options, v1::Sampling& sampling) {
  sampling.set_temperature(options.temperature);
  sampling.set_top_k(options.top_k);
  sampling.set_top_p(options.top_p);
  sampling.set_seed(options.seed);
  sampling.set_min_p(options.min_p);
  sampling.set_typical_p(options.typical_p);
  sampling.set_repetition_penalty(options.repetition_penalty);
  sampling.set_presence_penalty(options.presence_penalty);
  sampling.set_frequency_penalty(options.frequency_penalty);
  sampling.set_penalty_last_tokens(options.penalty_last_tokens);
  for (const LogitBias& bias : options.logit_bias) {
    v1::LogitBias& out = *sampling.add_logit_bias();
    out.set_id(bias.token_id);
    out.set_bias(bias.bias);
  }
}

// Nothing if nothing is asked for.
void SetRetrieval(const GenerateOptions& options, v1::GenerateRequest& request) {
  v1::Retrieval retrieval;
  retrieval.set_policy(options.policy);
  retrieval.set_select_percent(options.select_percent);
  retrieval.set_select_tokens_min(options.select_tokens_min);
  retrieval.set_select_tokens_max(options.select_tokens_max);
  retrieval.set_cluster_target_entries(options.cluster_target_entries);
  retrieval.set_seed(options.clustering_seed);
  if (options.estimate_percent) retrieval.set_estimate_percent(*options.estimate_percent);
  if (options.select_ahead) retrieval.set_select_ahead(*options.select_ahead);
  if (retrieval.ByteSizeLong() > 0) *request.mutable_retrieval() = retrieval;
}

TokenLogprob FromProto(const v1::TokenLogprob& token) {
  return {token.id(), token.text(), token.logprob()};
}

absl::Status HandleFinished(const v1::Finished& finished, GenerateResult& result) {
  if (!v1::FinishReason_IsValid(finished.reason()) || finished.reason() == 0) {
    return Internal("cairn-compute-node ended a generation for unknown reason {}",
                    static_cast<int>(finished.reason()));
  }
  result.reason = EnumFromProto(finished.reason(), FinishReason::kContext);
  result.generated_token_count = finished.generated_token_count();
  result.conversation_token_count = finished.conversation_token_count();
  result.queue_time = FromProto(finished.queue_time());
  result.first_token_time = FromProto(finished.first_token_time());
  result.prefill_time = FromProto(finished.prefill_time());
  result.decode_time = FromProto(finished.decode_time());
  result.io_time = FromProto(finished.io_time());
  result.exposed_io_time = FromProto(finished.exposed_io_time());
  result.kv_flash_bytes = finished.kv_flash_bytes();
  result.kv_dram_peak_bytes = finished.kv_dram_peak_bytes();
  result.kv_read_bytes = finished.kv_read_bytes();
  result.io_engine = finished.io_engine();
  result.reconnect_count = finished.reconnect_count();
  return absl::OkStatus();
}

}  // namespace

v1::GenerateRequest ToProto(const GenerateOptions& options) {
  v1::GenerateRequest request;
  request.set_conversation_id(options.conversation_id);
  if (options.conversation_token_count) {
    request.set_conversation_token_count(*options.conversation_token_count);
  }
  if (!options.messages.empty()) {
    for (const ChatMessage& message : options.messages) {
      v1::ChatMessage& out = *request.mutable_messages()->add_messages();
      out.set_role(message.role);
      out.set_content(message.content);
    }
  } else if (options.prompt_tokens.empty()) {
    request.set_text(options.prompt);
  } else {
    request.mutable_tokens()->mutable_ids()->Assign(options.prompt_tokens.begin(),
                                                    options.prompt_tokens.end());
  }
  request.set_parse_special(options.parse_special);
  request.set_tokens_max(options.tokens_max == 0 ? -1 : options.tokens_max);
  SetSampling(options, *request.mutable_sampling());
  request.mutable_stop()->Assign(options.stop.begin(), options.stop.end());
  request.mutable_stop_token_ids()->Assign(options.stop_token_ids.begin(),
                                           options.stop_token_ids.end());
  request.set_label(options.label);
  request.set_ephemeral(options.ephemeral);
  request.set_ignore_eos(options.ignore_end);
  request.set_logprobs(static_cast<bool>(options.on_logprob));
  request.set_top_logprob_count(options.on_logprob ? options.top_logprob_count : 0);
  SetRetrieval(options, request);
  request.set_prefill_tokens_max(options.prefill_tokens_max);
  return request;
}

absl::Status HandleEvent(const GenerateOptions& options, const v1::GenerateEvent& event,
                         GenerateResult& result) {
  if (event.has_started()) {
    result.conversation_id = event.started().conversation_id();
    result.reused_token_count = event.started().reused_token_count();
    result.prompt_token_count = event.started().prompt_token_count();
    result.policy = event.started().policy();
    if (options.on_started) {
      options.on_started(result.conversation_id, result.reused_token_count,
                         result.prompt_token_count);
    }
  } else if (event.has_prefill() && options.on_prefill) {
    options.on_prefill(event.prefill().done_token_count(), event.prefill().prompt_token_count());
  } else if (event.has_recomputing() && options.on_recomputing) {
    options.on_recomputing(event.recomputing().done_token_count(),
                           event.recomputing().token_count(), event.recomputing().reason());
  } else if (event.has_waiting() && options.on_waiting) {
    options.on_waiting(event.waiting().reason());
  } else if (event.has_token()) {
    ++result.generated_token_count;
    result.text += event.token().text();
    if (options.on_token) options.on_token(event.token().id());
    if (options.on_logprob && event.token().has_logprob()) {
      std::vector<TokenLogprob> top;
      for (const v1::TokenLogprob& token : event.token().top_logprobs()) {
        top.push_back(FromProto(token));
      }
      options.on_logprob(FromProto(event.token().logprob()), top);
    }
    if (options.on_text && !event.token().text().empty()) options.on_text(event.token().text());
  } else if (event.has_finished()) {
    return HandleFinished(event.finished(), result);
  }
  return absl::OkStatus();
}

ConversationInfo FromProto(const v1::Conversation& conversation) {
  ConversationInfo info;
  info.conversation_id = conversation.conversation_id();
  info.label = conversation.label();
  info.token_count = conversation.token_count();
  info.flash_bytes = conversation.flash_bytes();
  info.shared_flash_bytes = conversation.shared_flash_bytes();
  info.create_time = FromProto(conversation.create_time());
  if (conversation.has_update_time()) info.update_time = FromProto(conversation.update_time());
  info.usable = conversation.usable();
  info.unusable_reason = conversation.unusable_reason();
  return info;
}

GenerationStatus FromProto(const v1::Generation& generation) {
  GenerationStatus status;
  status.phase = EnumFromProto(generation.phase(), GenerationPhase::kWaiting);
  status.conversation_id = generation.conversation_id();
  status.label = generation.label();
  status.policy = generation.policy();
  status.token_count = generation.token_count();
  status.stored_token_count = generation.stored_token_count();
  status.done_token_count = generation.done_token_count();
  status.total_token_count = generation.total_token_count();
  status.kv_dram_bytes = generation.kv_dram_bytes();
  status.kv_read_bytes = generation.kv_read_bytes();
  return status;
}

}  // namespace cairn
