// GenerateRequestReader reads a GenerateRequest: what it asks for, checked, and the prompt that
// becomes of its text, tokens or messages.
//
// Threading:  any thread. A seed that is not given is a random one.
// Errors:     INVALID_ARGUMENT naming the field, or a prompt that no context holds;
//             FAILED_PRECONDITION messages for a model without a chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"
#include "compute-node/service/runtime.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/generation.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr std::int64_t kPromptBytesMax = std::int64_t{16} << 20;

// What a request asks for.
struct AskedTurn {
  SessionRef conversation;                           // id 0: a new one
  std::optional<std::int64_t> expected_token_count;  // what the client says that it holds
  ModelIdentity identity;                            // of a new one
  std::string label;
  bool ephemeral = false;
  PolicyRequest policy;
  TurnRequest turn;
  // Not empty: they become the prompt when the conversation that they follow is open.
  std::vector<ChatMessage> messages;

  // Of messages that are not yet the prompt.
  std::int64_t message_bytes() const;
};

// What a request asks of the policy. Whether that is possible shows on the choice that it is on.
PolicyRequest ReadRetrieval(const v1::Retrieval& retrieval);

class GenerateRequestReader {
 public:
  // `runtime` outlives it.
  explicit GenerateRequestReader(const Runtime& runtime) : runtime_(runtime) {}

  absl::Status Read(const v1::GenerateRequest& request, AskedTurn& asked) const;
  // Makes the prompt of the messages behind what the conversation holds, and sees that their end
  // ends a generation.
  absl::Status WriteMessagesBehind(Conversation& conversation, const StopSignal& stop,
                                   AskedTurn& asked) const;

 private:
  absl::Status ReadConversation(const v1::GenerateRequest& request, AskedTurn& asked) const;
  absl::Status ReadMessages(const v1::ChatMessages& messages, AskedTurn& asked) const;
  absl::Status WriteMessages(ChatPosition position, AskedTurn& asked) const;
  // What ends an answer where that is no token, as with a template that was chosen for a model.
  std::string EndText() const;
  // Whether an answer that ends with these tokens was ended by the model.
  bool EndsTurn(const std::vector<std::int32_t>& last_tokens) const;

  const Runtime& runtime_;
};

}  // namespace cairn::compute
