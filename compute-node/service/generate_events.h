// The events of a Generate stream, from what a turn has done.
//
// Threading:  none of these functions keeps anything; what they read must not change meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/compute/v1/inference.pb.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/generation.h"

namespace cairn::compute {

google::protobuf::Duration ToDuration(std::chrono::nanoseconds time);

// Of a turn that begins behind what `conversation` holds.
v1::GenerateEvent StartedEvent(const Conversation& conversation, std::int64_t prompt_token_count);
v1::GenerateEvent PrefillEvent(std::int64_t done_token_count, std::int64_t prompt_token_count);
v1::GenerateEvent RecomputingEvent(std::int64_t done_token_count, std::int64_t token_count,
                                   const std::string& reason);
// `likely` is null where no log probabilities were asked for.
v1::GenerateEvent TokenEvent(const Tokenizer& tokenizer, std::int32_t id, std::string_view text,
                             const LogProbabilities* likely);
// What the turn and its conversation know of a turn that has ended; the rest is its caller's.
void FillFinished(const Conversation& conversation, const TurnResult& result,
                  v1::Finished& finished);

}  // namespace cairn::compute
