#include "compute-node/service/kept_conversations.h"

#include <algorithm>
#include <utility>

#include <absl/cleanup/cleanup.h>

#include "common/log/log.h"
#include "compute-node/service/stored_sessions.h"
#include "compute-node/session/entries/stored_policy.h"

namespace cairn::compute {
namespace {

// How many tokens of `held` are the prompt's first; one of the prompt's is left to be computed,
// because only that gives logits.
std::int64_t SharedTokens(std::span<const std::int32_t> held,
                          std::span<const std::int32_t> prompt) {
  const std::span<const std::int32_t> reusable = prompt.first(prompt.size() - 1);
  return std::mismatch(held.begin(), held.end(), reusable.begin(), reusable.end()).first -
         held.begin();
}

}  // namespace

KeptConversations::KeptConversations(KvNode& node, const ServedModel& served,
                                     std::vector<PolicyChoice> policies, OpenConversations& open,
                                     std::string label, std::string creator, int count_max)
    : node_(node),
      served_(served),
      policies_(std::move(policies)),
      selects_(std::any_of(policies_.begin(), policies_.end(),
                           [](const PolicyChoice& policy) { return policy.selects(); })),
      open_(open),
      label_(std::move(label)),
      creator_(std::move(creator)),
      count_max_(count_max) {}

void KeptConversations::Adopt() {
  absl::StatusOr<std::vector<SessionInfo>> sessions = node_.List(ListDetail::kRows);
  if (!sessions.ok()) {
    LogWarning("kept conversations: {}", Message(sessions.status()));
    return;
  }
  std::sort(sessions->begin(), sessions->end(), [](const SessionInfo& a, const SessionInfo& b) {
    return std::pair(a.checkpoint_time_us, a.session_id) <
           std::pair(b.checkpoint_time_us, b.session_id);
  });
  int count = 0;
  for (const SessionInfo& session : *sessions) {
    if (session.label != label_) continue;
    if (count_max_ > 0 && AdoptOne(session)) {
      ++count;
    } else {
      Put({RefTo(session), {}, {}, {}}, Age::kOldest);
    }
  }
  if (count > 0) LogInfo("kept conversations: found={} label={}", count, label_);
  Trim();
}

bool KeptConversations::AdoptOne(const SessionInfo& session) {
  ModelIdentity identity = IdentityOf(session);
  const bool is_served = served_.CheckServes(session.session_id, identity).ok();
  if (!is_served || session.token_count == 0) return false;
  absl::StatusOr<StoredPolicy> stored = ReadStoredPolicy(node_, RefTo(session));
  if (!stored.ok()) {
    LogWarning("kept conversation session={}: {}", session.session_id, Message(stored.status()));
    return false;
  }
  // What it answers would be what no new one does.
  if (std::find(policies_.begin(), policies_.end(), stored->choice) == policies_.end())
    return false;
  absl::StatusOr<std::vector<std::int32_t>> tokens = ReadAllTokens(node_, RefTo(session));
  if (!tokens.ok()) {
    LogWarning("kept conversation session={}: {}", session.session_id, Message(tokens.status()));
    return false;
  }
  Put({RefTo(session), std::move(identity), *std::move(tokens), std::move(stored->seals)});
  return true;
}

std::optional<StoredPrefix> KeptConversations::Take(const ModelIdentity& identity,
                                                    std::span<const std::int32_t> prompt,
                                                    const StopSignal& stop) {
  std::optional<Entry> entry = TakeBest(identity, prompt);
  if (!entry.has_value()) return std::nullopt;
  const SessionId origin = entry->session.id;
  if (!open_.TryTake(origin)) {
    // Somebody reads it by its id.
    Put(*std::move(entry));
    return std::nullopt;
  }
  const std::int64_t shared_count = SharedTokens(entry->tokens, prompt);
  const absl::StatusOr<SessionRef> begun = Begin(*entry, shared_count);
  if (begun.ok() && *begun == entry->session) {
    return StoredPrefix{*begun, shared_count, origin, std::move(entry->seals)};
  }
  open_.Give(origin);
  if (!begun.ok()) {
    LogInfo("kept conversation session={} is not used: {}", origin, Message(begun.status()));
    // Gone, of another store, or somebody went on with it by its id.
    if (absl::IsNotFound(begun.status()) || absl::IsAborted(begun.status())) return std::nullopt;
  }
  // Forking has sealed it.
  if (begun.ok()) entry->seals.Add(std::ssize(entry->tokens));
  PromptSeals seals = entry->seals.CutAt(shared_count);
  seals.Add(shared_count);
  // Of what is the same for the most part, the fork is what the client goes on with.
  const bool replaced = begun.ok() && shared_count > std::ssize(entry->tokens) / 2;
  Put(*std::move(entry), replaced ? Age::kOldest : Age::kNewest);
  if (!begun.ok()) return std::nullopt;
  // A client that guesses its id may have it.
  if (open_.Take(begun->id, stop).ok()) {
    return StoredPrefix{*begun, shared_count, origin, std::move(seals)};
  }
  Put({*begun, identity, {prompt.begin(), prompt.begin() + shared_count}, std::move(seals)});
  return std::nullopt;
}

// The entry's conversation itself, or a fork of it.
absl::StatusOr<SessionRef> KeptConversations::Begin(const Entry& entry, std::int64_t shared_count) {
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, FindSession(node_, entry.session));
  const bool is_ours = session.label == label_ && IdentityOf(session) == entry.identity;
  if (!is_ours) return Aborted("it is another store's: '{}'", session.label);
  if (session.token_count != std::ssize(entry.tokens)) {
    return Aborted("it has {} tokens, not {}", session.token_count, entry.tokens.size());
  }
  if (shared_count == session.token_count) return entry.session;
  return ForkSession(node_, session, shared_count,
                     {label_, creator_, SessionLifetime::kFromCheckpoint});
}

std::optional<KeptConversations::Entry> KeptConversations::TakeBest(
    const ModelIdentity& identity, std::span<const std::int32_t> prompt) {
  const MutexLock lock(mutex_);
  auto best = entries_.end();
  Fit best_fit;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->identity != identity) continue;
    const std::int64_t count = SharedTokens(entry->tokens, prompt);
    if (count < kSharedTokensMin || IsTooDeep(*entry, count, std::ssize(prompt))) continue;
    const Fit fit = FitOf(*entry, count);
    if (best != entries_.end() && fit <= best_fit) continue;
    best = entry;
    best_fit = fit;
  }
  if (best == entries_.end()) return std::nullopt;
  Entry taken = std::move(*best);
  entries_.erase(best);
  return taken;
}

KeptConversations::Fit KeptConversations::FitOf(const Entry& entry,
                                                std::int64_t shared_count) const {
  int alike = 0;
  if (selects_) {
    alike = entry.seals.IsFreshAt(shared_count) ? 2 : entry.seals.Has(shared_count) ? 1 : 0;
  }
  // Of equals the one that needs no fork.
  return {shared_count, alike, -std::ssize(entry.tokens)};
}

// Whether a conversation that goes on behind `shared_count` tokens of the entry has too many
// segments for the tokens that it will have. The same for a prompt that comes again: its own seal
// is counted the first time, and its fork's beginning, which lies there, the next times.
bool KeptConversations::IsTooDeep(const Entry& entry, std::int64_t shared_count,
                                  std::int64_t prompt_token_count) const {
  const bool forks = shared_count < std::ssize(entry.tokens);
  const bool seals = selects_ && shared_count < prompt_token_count - 1;
  if (!forks && !seals) return false;
  const std::int64_t before = entry.seals.CountTo(forks ? shared_count - 1 : shared_count);
  const std::int64_t count = before + (forks ? 1 : 0) + (seals ? 1 : 0);
  const std::int64_t count_max = kForkDepthMin + prompt_token_count / kForkTokensMin;
  return count > std::min(count_max, kPromptSealsMax);
}

void KeptConversations::Keep(SessionRef session, ModelIdentity identity,
                             std::vector<std::int32_t> tokens, PromptSeals seals) {
  const Age age = tokens.empty() ? Age::kOldest : Age::kNewest;
  Put({std::move(session), std::move(identity), std::move(tokens), std::move(seals)}, age);
  Trim();
}

void KeptConversations::Remove(SessionId id) {
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [id](const Entry& entry) { return entry.session.id == id; });
    if (found == entries_.end()) return;
    found->tokens.clear();
    std::rotate(entries_.begin(), found, found + 1);
  }
  Trim();
}

void KeptConversations::MakeRoom(const KvStats& stats, std::int64_t wanted_bytes) {
  const auto fits = [wanted_bytes](const KvStats& now) {
    return static_cast<double>(now.flash_used_bytes + wanted_bytes) <=
           kKeptFlashUseMax * static_cast<double>(now.flash_size_bytes);
  };
  if (fits(stats)) return;
  // How much one frees only the KV node knows: forks hold on to what they share.
  DropOldest(0, [this, &fits] {
    const absl::StatusOr<KvStats> now = node_.Stats();
    return now.ok() && !fits(*now);
  });
}

void KeptConversations::DropAll() {
  DropOldest(0, [] { return true; });
}

void KeptConversations::Trim() {
  DropOldest(count_max_, [] { return true; });
}

void KeptConversations::DropOldest(int count_min, const std::function<bool()>& wanted) {
  std::vector<Entry> left;
  while (wanted()) {
    std::optional<Entry> oldest = TakeOldest(count_min);
    if (!oldest.has_value()) break;
    const absl::Status dropped = Drop(oldest->session);
    if (dropped.ok()) continue;
    LogInfo("kept conversation session={} is not deleted yet: {}", oldest->session.id,
            Message(dropped));
    left.push_back(*std::move(oldest));
    // Without the KV node the next one would only wait as long.
    if (!absl::IsFailedPrecondition(dropped)) break;
  }
  for (; !left.empty(); left.pop_back()) Put(std::move(left.back()), Age::kOldest);
}

std::optional<KeptConversations::Entry> KeptConversations::TakeOldest(int count_min) {
  const MutexLock lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  const bool waits = entries_.front().tokens.empty();
  if (!waits && std::ssize(entries_) <= count_min) return std::nullopt;
  Entry oldest = std::move(entries_.front());
  entries_.pop_front();
  return oldest;
}

void KeptConversations::Put(Entry entry, Age age) {
  const MutexLock lock(mutex_);
  entries_.insert(age == Age::kOldest ? entries_.begin() : entries_.end(), std::move(entry));
}

absl::Status KeptConversations::Drop(const SessionRef& session) {
  if (!open_.TryTake(session.id)) return FailedPrecondition("somebody reads it by its id");
  const absl::Cleanup give = [&] { open_.Give(session.id); };
  const absl::StatusOr<SessionInfo> found = FindSession(node_, session);
  // A KV node that came back with another store has somebody else's under this id.
  const bool is_ours = found.ok() && found->label == label_;
  const absl::Status deleted = is_ours ? node_.Delete(session) : found.status();
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace cairn::compute
