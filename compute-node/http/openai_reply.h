// From the events of a generation to OpenAI's JSON: one object at the end, or chunks as they come.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <string>

#include "cairn/compute/v1/inference.pb.h"
#include "compute-node/http/json_reader.h"
#include "compute-node/http/openai_request.h"

namespace cairn::compute {

// What every object of one reply says.
struct ReplyHead {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::int64_t created_s = 0;
  std::string model;
  std::string fingerprint;
};

class OpenAiReply {
 public:
  OpenAiReply(const ApiRequest& request, ReplyHead head);

  // Takes the next event. `end_token`: the event's token is an end-of-generation token, which is no
  // part of the text.
  void Add(const v1::GenerateEvent& event, bool end_token);

  // The chunks that are to be sent now, each as `data: {...}` with an empty line; may be empty.
  std::string TakeChunks();
  // The whole answer. REQUIRES: the Finished event was added.
  std::string WholeAnswer() const;

 private:
  OrderedJson Head(bool chunk) const;
  OrderedJson Usage() const;
  OrderedJson Timings() const;
  OrderedJson LogprobsOrNull() const;
  // `chat`: what a chat has in the place of a completion's `text`.
  OrderedJson Choice(OrderedJson chat, OrderedJson text, OrderedJson logprobs,
                     OrderedJson finish_reason) const;
  void AddLogprob(const v1::Token& token);
  void AddChunk(OrderedJson choice);
  void AddTextChunk();
  void AddLastChunks();

  const ApiKind kind_;
  const bool stream_;
  const bool include_usage_;
  const bool logprobs_;
  const ReplyHead head_;
  std::string text_;              // of the whole answer, or what no chunk has yet
  OrderedJson logprobs_list_;     // likewise, in the chat's or the completion's form
  std::int64_t text_offset_ = 0;  // characters of tokens whose log probability was added
  v1::Finished finished_;
  std::string chunks_;
};

}  // namespace cairn::compute
