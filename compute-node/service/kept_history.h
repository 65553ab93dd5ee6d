// KeptHistory is what a turn knows of the conversation of a PrefixStore that it goes on with: the
// tokens that it should hold, and how many of them it does.
//
// Threading:  one thread, the turn's.
// Blocking:   for the KV node's answers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/service/prefix_store.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

class KeptHistory {
 public:
  KeptHistory() = default;
  // A prompt of which the conversation, of this identity, holds the first `held_count` tokens,
  // sealed at `seals`.
  KeptHistory(ModelIdentity identity, std::vector<std::int32_t> prompt, std::int64_t held_count,
              PromptSeals seals)
      : identity_(std::move(identity)),
        tokens_(std::move(prompt)),
        held_count_(held_count),
        seals_(std::move(seals)) {}

  // The turn went on with this token.
  void Add(std::int32_t token) { tokens_.push_back(token); }
  // ABORTED if the conversation holds other tokens than it is thought to: somebody else went on
  // with it, or an older copy of the store was put back and gone on with.
  absl::Status Check(Conversation& conversation, const StopSignal& stop);
  // The turn has ended in this conversation, as it is now.
  void NoteEnd(const Conversation& conversation, const absl::Status& status);
  // Finds out what the conversation holds behind a turn that ended with `status`. REQUIRES: nobody
  // else has it open.
  void CountHeld(KvNode& node, const SessionRef& conversation, const absl::Status& status);
  // Gives it to `kept`, unless it is somebody else's now. `whole`: whether it can be gone on with.
  // REQUIRES: CountHeld; nobody has it open.
  void Keep(PrefixStore& kept, const SessionRef& conversation, bool whole);

 private:
  ModelIdentity identity_;
  std::vector<std::int32_t> tokens_;  // what it holds, and then some
  std::int64_t held_count_ = 0;
  PromptSeals seals_;
};

}  // namespace cairn::compute
