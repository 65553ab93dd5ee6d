// PrefixStore is where a turn of a client that sends its whole history with each request, as those
// of OpenAI's API do, finds the beginning of it that was computed before, and leaves what it
// computed for the next one. The turn knows nothing else of it: what is kept, how long, and how a
// beginning is found again, are the store's.
//
// Threading:  safe from any thread.
// Blocking:   for the KV node's answers.
// Errors:     none to the caller: what cannot be kept is computed again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/kv/messages.h"
#include "compute-node/session/entries/prompt_seals.h"
#include "compute-node/session/served_model.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// A conversation that holds the beginning of a prompt.
struct StoredPrefix {
  SessionRef session;
  std::int64_t token_count = 0;  // all that the conversation has
  SessionId origin;              // what it is a fork of, or itself
  PromptSeals seals;
};

class PrefixStore {
 public:
  PrefixStore() = default;
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;
  virtual ~PrefixStore() = default;

  // Of the sessions that it keeps: a turn makes its own with it.
  virtual const std::string& label() const = 0;

  // A conversation of this identity that holds a beginning of `prompt`, but not all of it; the
  // longest that is kept. nullopt: none. The caller has it open (OpenConversations) and gives it to
  // Keep afterwards.
  virtual std::optional<StoredPrefix> Take(const ModelIdentity& identity,
                                           std::span<const std::int32_t> prompt,
                                           const StopSignal& stop) = 0;

  // Keeps a conversation that nobody has open and that holds `tokens`. None: it is deleted, at once
  // or, if that cannot be done now, later.
  virtual void Keep(SessionRef session, ModelIdentity identity, std::vector<std::int32_t> tokens,
                    PromptSeals seals) = 0;

  // Deletes the conversation, if it is kept, because it cannot be read.
  virtual void Remove(SessionId id) = 0;

  // Deletes what is least useful until `wanted_bytes` more fit onto the flash beside what is kept,
  // or nothing is left. `stats` are the KV node's of just now.
  virtual void MakeRoom(const KvStats& stats, std::int64_t wanted_bytes) = 0;
  // Deletes all.
  virtual void DropAll() = 0;
};

}  // namespace cairn::compute
