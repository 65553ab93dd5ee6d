// KeptConversations is a PrefixStore of whole conversations: what a request computed stays on
// flash, and the next request that begins with the same tokens goes on from there. One that only
// begins alike (an answer that is asked for again, an edited question, the same system message)
// goes on with a fork.
//
// They are sessions as any, whose label says whose they are, so that the next start finds them
// again. Only those of the request's own identity are gone on with, and of these only tokens are
// compared: who sends the beginning of a text has it, and learns from the answer at most how fast
// it came.
//
// Policies that select go on otherwise behind a beginning that came in other parts. So each request
// seals its conversation before the prompt's last token, and the same prompt again goes on from
// there: with the same words.
//
// Limits:     count_max conversations; the one that was used longest ago goes first. They leave
//             room: see kKeptFlashUseMax.
// Errors:     are logged.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/service/open_conversations.h"
#include "compute-node/service/prefix_store.h"
#include "compute-node/session/entries/prompt_seals.h"
#include "compute-node/session/options.h"
#include "compute-node/session/served_model.h"

namespace cairn::compute {

inline constexpr int kKeptConversationsDefault = 8;
inline constexpr int kKeptConversationsMax = 64;
// A shorter common beginning is computed again: that is cheaper than a fork.
inline constexpr std::int64_t kSharedTokensMin = 16;
// So many segments a conversation has behind its first one, and one more for each so many tokens;
// then it is computed anew. Each fork and each seal makes one, which takes at least a page for each
// layer and head that each token reads.
inline constexpr std::int64_t kForkDepthMin = 32;
inline constexpr std::int64_t kForkTokensMin = 64;
// The share of the flash up to which conversations are kept; beyond it they give way.
inline constexpr double kKeptFlashUseMax = 0.75;

class KeptConversations : public PrefixStore {
 public:
  // Borrows node, served and open, which outlive it. `policies` are what new conversations are made
  // with: those that an earlier process made with another one are not gone on with. `label` names
  // the endpoint on this machine: no other process keeps conversations under it.
  KeptConversations(KvNode& node, const ServedModel& served, std::vector<PolicyChoice> policies,
                    OpenConversations& open, std::string label, std::string creator, int count_max);

  const std::string& label() const override { return label_; }

  // Finds what an earlier process kept, and deletes what this model cannot use or another policy
  // made, and all if count_max is 0. Once, at the start.
  void Adopt();

  std::optional<StoredPrefix> Take(const ModelIdentity& identity,
                                   std::span<const std::int32_t> prompt,
                                   const StopSignal& stop) override;
  void Keep(SessionRef session, ModelIdentity identity, std::vector<std::int32_t> tokens,
            PromptSeals seals) override;
  void Remove(SessionId id) override;
  // The oldest first, until they fit into kKeptFlashUseMax.
  void MakeRoom(const KvStats& stats, std::int64_t wanted_bytes) override;
  void DropAll() override;

 private:
  struct Entry {
    SessionRef session;
    ModelIdentity identity;
    std::vector<std::int32_t> tokens;  // empty: it waits to be deleted
    PromptSeals seals;
  };
  enum class Age { kOldest, kNewest };
  // How well an entry serves a prompt with which it shares its first tokens: the better the larger.
  using Fit = std::tuple<std::int64_t, int, std::int64_t>;
  Fit FitOf(const Entry& entry, std::int64_t shared_count) const;
  bool IsTooDeep(const Entry& entry, std::int64_t shared_count,
                 std::int64_t prompt_token_count) const;
  std::optional<Entry> TakeBest(const ModelIdentity& identity,
                                std::span<const std::int32_t> prompt);
  absl::StatusOr<SessionRef> Begin(const Entry& entry, std::int64_t shared_count);
  // Deletes the oldest while `wanted` and more than `count_min` are there. Those that somebody
  // reads, or all while the KV node is away, stay for the next time.
  void DropOldest(int count_min, const std::function<bool()>& wanted);
  std::optional<Entry> TakeOldest(int count_min);
  bool AdoptOne(const SessionInfo& session);
  void Put(Entry entry, Age age = Age::kNewest);
  void Trim();
  // FAILED_PRECONDITION while somebody has it open.
  absl::Status Drop(const SessionRef& session);

  KvNode& node_;
  const ServedModel& served_;
  const std::vector<PolicyChoice> policies_;
  const bool selects_;  // one of them does
  OpenConversations& open_;
  const std::string label_;
  const std::string creator_;  // of Runtime
  const int count_max_;

  Mutex mutex_;
  std::deque<Entry> entries_ CAIRN_GUARDED_BY(mutex_);  // the one used longest ago first
};

}  // namespace cairn::compute
