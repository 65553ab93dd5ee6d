#include "compute-node/service/generate_events.h"

namespace cairn::compute {
namespace {

v1::FinishReason ToReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return v1::FINISH_REASON_END;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kContext:
      return v1::FINISH_REASON_CONTEXT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::TokenLogprob ToProto(const Tokenizer& tokenizer, const TokenLogProbability& token) {
  v1::TokenLogprob out;
  out.set_id(token.id);
  out.set_text(tokenizer.DecodePiece(token.id, /*render_special=*/true));
  out.set_logprob(token.value);
  out.set_special(!tokenizer.MarkerName(token.id).empty());
  return out;
}

}  // namespace

google::protobuf::Duration ToDuration(std::chrono::nanoseconds time) {
  google::protobuf::Duration duration;
  duration.set_seconds(time.count() / 1'000'000'000);
  duration.set_nanos(static_cast<std::int32_t>(time.count() % 1'000'000'000));
  return duration;
}

v1::GenerateEvent StartedEvent(const Conversation& conversation, std::int64_t prompt_token_count) {
  v1::GenerateEvent event;
  v1::Started& started = *event.mutable_started();
  started.set_conversation_id(conversation.id().value());
  started.set_conversation_uid(conversation.uid());
  started.set_reused_token_count(conversation.token_count());
  started.set_policy(conversation.policy_choice().name);
  started.set_prompt_token_count(prompt_token_count);
  return event;
}

v1::GenerateEvent PrefillEvent(std::int64_t done_token_count, std::int64_t prompt_token_count) {
  v1::GenerateEvent event;
  event.mutable_prefill()->set_done_token_count(done_token_count);
  event.mutable_prefill()->set_prompt_token_count(prompt_token_count);
  return event;
}

v1::GenerateEvent RecomputingEvent(std::int64_t done_token_count, std::int64_t token_count,
                                   const std::string& reason) {
  v1::GenerateEvent event;
  event.mutable_recomputing()->set_done_token_count(done_token_count);
  event.mutable_recomputing()->set_token_count(token_count);
  event.mutable_recomputing()->set_reason(reason);
  return event;
}

v1::GenerateEvent TokenEvent(const Tokenizer& tokenizer, std::int32_t id, std::string_view text,
                             const LogProbabilities* likely) {
  v1::GenerateEvent event;
  event.mutable_token()->set_id(id);
  event.mutable_token()->set_text(std::string(text));
  if (likely == nullptr) return event;
  *event.mutable_token()->mutable_logprob() = ToProto(tokenizer, likely->chosen);
  for (const TokenLogProbability& token : likely->top) {
    *event.mutable_token()->add_top_logprobs() = ToProto(tokenizer, token);
  }
  return event;
}

void FillFinished(const Conversation& conversation, const TurnResult& result,
                  v1::Finished& finished) {
  finished.set_reason(ToReason(result.reason));
  finished.set_generated_token_count(result.generated_count);
  finished.set_conversation_token_count(conversation.token_count());
  *finished.mutable_prefill_time() = ToDuration(result.prefill_time);
  *finished.mutable_decode_time() = ToDuration(result.decode_time);
  *finished.mutable_open_time() = ToDuration(conversation.open_time());
  *finished.mutable_index_time() = ToDuration(conversation.index_time());
  const FetchTimes fetches = conversation.fetch_times();
  *finished.mutable_io_time() = ToDuration(fetches.io_time);
  *finished.mutable_exposed_io_time() = ToDuration(fetches.exposed_time);
  finished.set_kv_read_bytes(fetches.read_bytes);
  finished.set_reconnect_count(conversation.reconnect_count());
}

}  // namespace cairn::compute
