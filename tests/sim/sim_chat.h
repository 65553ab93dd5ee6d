// SimChat is a compute node's conversation: the client's protocol as it runs in the product
// (SessionProtocol and SessionOwner) over a SimStream, random operations, and an oracle of what it
// must show. Its process may end at any moment; another one then opens what was stored.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compute-node/kv_client/arena_map.h"
#include "compute-node/kv_client/lease_returns.h"
#include "compute-node/kv_client/session_owner.h"
#include "compute-node/kv_client/session_protocol.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_stream.h"
#include "tests/unit/engine/oracle.h"

namespace cairn::sim {

struct SimSealed {
  SimStore* store = nullptr;
  SessionRef session;
  SegmentId segment;
  std::int64_t start = 0;
  kv::Oracle oracle;
  // Whether its session may be gone: somebody deletes it, or it is ephemeral.
  std::shared_ptr<bool> may_go;
};

// A session's place that another one, its replacement, may have taken.
struct SimSupersession {
  SessionRef replacement;
  // What the session shows from then on.
  OpSeq op_seq;
  std::shared_ptr<const kv::Oracle> oracle;
  std::set<SegmentId> segments;  // of the replacement, as far as they were told
  int call_count = 0;
  int unanswered_count = 0;
  std::optional<bool> was_done;  // as far as anybody knows
  bool is_settled = false;       // the session goes on as the replacement
};

// A store as it was, and what its conversations' compute nodes knew.
struct SimCopy {
  SimRows rows;
  std::vector<std::byte> disk;
  // By uid: what it may show.
  std::map<std::string, std::map<OpSeq, std::shared_ptr<const kv::Oracle>>> saved;
  std::set<SegmentId> sealed;
};

// What all chats of a world share.
struct SimContext {
  SimWire& wire;
  SimNode& node;
  kv::RandomOperations& operations;
  SimWire::Random random;
  const kv::EngineTime& now;
  // Of sessions whose creation was heard of, by their stores' names: whoever was told that it is
  // deleted must not find it again.
  std::set<std::pair<std::string, std::string>> heard_uids;
  bool was_metadata_disk_full = false;
  std::int64_t node_dies_in = 0;  // steps; 0: as it comes
  std::map<std::string, int> counts;
  std::vector<SimSealed> sealed;
  absl::Status wrong;  // the first thing that is

  template <typename... Args>
  void Wrong(const fmt::format_string<Args...>& format, Args&&... args) {
    if (wrong.ok()) wrong = absl::InternalError(fmt::format(format, std::forward<Args>(args)...));
  }
  std::string RandomUid() const {
    std::string bytes(kUidBytes, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random(256));
    return bytes;
  }
};

class SimChat {
 public:
  // `parent`: what it goes on from; none: it is empty.
  SimChat(SimContext& context, std::optional<SimSealed> parent);
  // It computes the other one's tokens again, to take its place.
  SimChat(SimContext& context, const std::shared_ptr<SimChat>& repeated);
  ~SimChat();
  SimChat(const SimChat&) = delete;
  SimChat& operator=(const SimChat&) = delete;

  // Does something, if there is anything to do.
  void Act();
  // Only what brings it to Open(), no new operations.
  void GoOn();
  // Attached, and nothing is under way.
  bool is_quiet() const;
  bool is_gone() const { return is_gone_; }
  // Nobody else computes it again, and what is stored of it is known.
  bool MayBeRepeated() const;
  void SetReplacement(const std::shared_ptr<SimChat>& chat) { replacement_ = chat; }
  SimStore* store() const { return store_; }  // null: not created
  SessionRef session() const { return session_; }
  // Its process ends, and another one takes its place.
  void Crash();
  // Its connection does.
  void BreakStream();
  void Delete();
  // Its process closes it and ends.
  void Close();
  void NoteIn(SimCopy& copy) const;
  // An older copy is in the place of its store. Nothing is on its way.
  void OnPutBack(const SimStore& store, const SimCopy& copy);
  // Its process ends, and another one seals what is stored.
  void SealAsStored();
  // Another client attaches to its session, or deletes it.
  void OpenBySomebodyElse();
  void DeleteBySomebodyElse();
  // Asks for everything that it must show.
  void AskAll();
  // For people: what it waits for.
  std::string Describe() const;

 private:
  using State = compute::SessionProtocol::State;
  struct Expected {
    ReadOperation operation;
    OpSeq after;
    std::shared_ptr<const kv::Oracle> oracle;
    std::future<absl::StatusOr<ReadReply>> answer;
  };

  // A reply that somebody still reads, and what it shows.
  struct Held {
    FetchReply reply;
    std::string bytes;
    std::weak_ptr<SimStream> stream;
  };

  // An answer's, if it is for the process that runs now.
  template <typename T>
  kv::Callback<T> ForThisLife(void (SimChat::*on_answer)(const absl::StatusOr<T>&));
  // Of a call by somebody else that takes the session.
  template <typename T>
  kv::Callback<T> TakenBeside(kv::Callback<T> answer);
  bool IsAttached() const { return stream_ != nullptr && !attaching_; }
  void Create();
  void OnCreated(absl::StatusOr<SessionRef> created);
  void OnDeleted(const absl::StatusOr<std::monostate>& deleted);
  void OnSealed(const absl::StatusOr<SealedSegment>& sealed);
  bool NoteIfAbandoned();
  bool NoteIfOlder(const absl::Status& status);
  bool IsStored() const;

  bool IsServed() const;
  bool NoteIfDeleted();

  // ---- sim_chat_supersede.cc ----
  bool IsReplacement() const { return !repeats_.empty(); }
  bool MayVanish() const;
  // What its replacement needs to have: all of its tokens, durable.
  bool IsReady() const;
  bool TakesPlace();
  bool MayHaveTakenPlace() const;
  void Supersede(SimChat& repeated);
  void OnSuperseded(const absl::StatusOr<std::monostate>& superseded);
  void NoteAsked();
  void SettleSupersession(const Attachment& attachment);
  bool ShowsReplacement(const Attachment& attachment) const;
  bool NoteIfSuperseded();
  // What it may show because of it.
  void AddReplacement(std::map<OpSeq, std::shared_ptr<const kv::Oracle>>& saved) const;
  void Repeat();

  std::shared_ptr<const kv::Oracle> FirstOracle() const;
  void Attach();
  void OnAttachment(const absl::StatusOr<Attachment>& attachment);
  // Whether its process ends, or does something else first.
  bool LosesStream();
  void OpenStream();
  bool WaitedTooLong() const;
  void OnHello();
  void OnAttachFailed(const absl::Status& status, bool again);
  void OnReply(const std::shared_ptr<pb::ChannelReply>& reply);
  void OnStreamEnd(const absl::Status& end);
  void BeginFrom(const Attachment& attachment);
  void LookAtCheckpoint();
  void LookAtFailure();
  void Resend();
  void LetGo();
  void EndStream();
  void DropStream();
  void LoseStream();

  // ---- sim_chat_leases.cc ----
  std::shared_ptr<compute::ArenaMap> NewArenaMap();
  // False: the node went away under it, and it is asked for again.
  bool TakeAnswer(RequestId request_id, const std::shared_ptr<pb::ChannelReply>& reply);
  void Write(pb::ChannelRequest message);
  void Hold(FetchReply reply);
  bool IsVoid(const FetchReply& reply, const std::shared_ptr<SimStream>& stream);
  void CheckHeld(const Held& held);
  void GiveSomeBack();
  void DropHeld();
  void ForgetAsked();

  void Send(ChangingOperation operation);
  void SendUnsent();
  bool MayKeep(const ChangingOperation& operation) const;
  void MakeRoom();
  bool KeepsLittle() const;
  void Ask(ReadOperation operation);
  void AskSome();
  void DoRandom();
  void Decode(std::optional<std::int64_t> truth);
  void TakeCheckpoint();
  template <typename T>
  kv::Callback<T> Taking(kv::Callback<T> answer);
  template <typename T>
  kv::Callback<T> CountedOut(kv::Callback<T> answer);
  bool MayLackRoom() const;
  void CheckAttachment(const Attachment& attachment);
  void CheckAnswer(Expected& expected);
  void CheckRefusal(const Expected& expected, const absl::Status& status);
  void CheckFetch(const kv::Oracle& oracle, const Fetch& fetch, const FetchReply& reply);
  void CheckCarried(const kv::Oracle& oracle, std::int32_t layer, const CarriedReply& reply);
  // Of a damaged store: some of them.
  bool AreRowsOf(const kv::Oracle& oracle, std::int32_t layer,
                 const std::vector<IndexRow>& rows) const;
  std::shared_ptr<const kv::Oracle> Now();
  kv::Oracle& Change();

  SimContext& context_;
  std::optional<SimSealed> parent_;
  const std::int64_t replay_bytes_max_;
  const bool uses_arena_;
  const std::int64_t held_max_;
  std::string uid_;
  SimStore* store_ = nullptr;        // null: not created
  SimStore* asked_store_ = nullptr;  // by the last attempt to create it or to attach
  SessionRef session_;
  SessionLifetime lifetime_ = SessionLifetime::kPermanent;
  bool is_gone_ = false;
  bool deletes_ = false;
  int delete_tries_ = 0;
  bool is_older_ = false;        // an older copy of its store was put back, and it has not met it
  bool may_be_unknown_ = false;  // to that copy
  // Calls that take the session, and are unanswered: those of processes that have ended, too.
  const std::shared_ptr<int> takes_out_ = std::make_shared<int>(0);
  std::shared_ptr<bool> may_go_ = std::make_shared<bool>(false);  // of what it seals
  kv::EngineTime asked_time_{};  // of the last attempt that is known to have attached, or to create
  kv::EngineTime attempt_time_{};
  Epoch last_epoch_;
  std::int64_t rests_ = 0;  // so often it does nothing
  // Whether another client deleted it, as far as that one knows; null: none tried.
  std::shared_ptr<bool> others_deletion_;
  bool was_deleted_ = false;  // so, before the last attempt to attach
  // That another client was told of.
  std::shared_ptr<Epoch> others_epoch_ = std::make_shared<Epoch>();

  std::weak_ptr<SimChat> repeated_;
  std::vector<std::int64_t> repeats_;  // the tokens of that one; empty: it is no replacement
  std::weak_ptr<SimChat> replacement_;
  // By it or of it; null: it holds what is its own.
  std::shared_ptr<SimSupersession> supersession_;
  // The same when it asked to attach the last time.
  struct {
    std::shared_ptr<SimSupersession> supersession;
    bool was_done = false;
    int call_count = 0;  // none of which is unanswered; -1: some are
  } asked_;

  // Of the process that runs.
  std::shared_ptr<int> life_ = std::make_shared<int>(0);
  std::unique_ptr<compute::SessionOwner> owner_;
  std::unique_ptr<compute::SessionProtocol> protocol_;
  std::shared_ptr<SimStream> stream_;
  bool owner_is_over_ = false;       // another one has the session, or the store is another one
  bool has_rival_ = false;           // a call of a process before it may come later
  bool asked_beside_rival_ = false;  // by the last attempt
  bool calls_ = false;               // an answer is to come
  bool attaching_ = false;           // the stream's hello is
  Attachment attachment_;            // of the stream that is being opened
  std::set<SegmentId> segments_;     // that it was told of
  bool lacks_stream_ = false;        // it has an attachment, and has not asked for its stream
  std::int64_t asked_incarnation_ = 0;
  kv::EngineTime attachment_time_{};  // when it heard of it
  bool came_too_late_ = false;        // its stream, by the node's clock
  std::optional<compute::ResendCursor> resend_;
  std::map<RequestId, Expected> expected_;
  std::int32_t carried_to_come_ = 0;          // replies without which nothing is sent
  std::shared_ptr<compute::ArenaMap> arena_;  // of the stream; null: bytes come through the socket
  // Of the stream: so are the leases.
  std::shared_ptr<compute::LeaseReturns> lease_returns_ = std::make_shared<compute::LeaseReturns>();
  std::vector<Held> held_;
  std::deque<ChangingOperation> unsent_;  // for which the replay buffer has no room

  kv::Oracle now_;
  std::shared_ptr<const kv::Oracle> shared_now_;
  std::map<OpSeq, std::shared_ptr<const kv::Oracle>> saved_;  // that the store may show
  OpSeq acked_;
  OpSeq checkpoint_;  // that is waited for; 0: none
  bool seals_ = false;
  std::int64_t segment_start_ = 0;
  std::set<std::int64_t> recorded_;
};

template <typename T>
kv::Callback<T> SimChat::ForThisLife(void (SimChat::*on_answer)(const absl::StatusOr<T>&)) {
  return [this, life = std::weak_ptr<int>(life_), on_answer](const absl::StatusOr<T>& result) {
    if (!life.expired()) (this->*on_answer)(result);
  };
}

// Counts a call that takes the session from whoever has it.
template <typename T>
kv::Callback<T> SimChat::Taking(kv::Callback<T> answer) {
  asked_beside_rival_ = *takes_out_ > 0;
  return CountedOut(std::move(answer));
}

template <typename T>
kv::Callback<T> SimChat::TakenBeside(kv::Callback<T> answer) {
  asked_beside_rival_ = true;
  has_rival_ = true;
  return CountedOut(std::move(answer));
}

template <typename T>
kv::Callback<T> SimChat::CountedOut(kv::Callback<T> answer) {
  ++*takes_out_;
  return [out = takes_out_, answer = std::move(answer)](absl::StatusOr<T> result) {
    --*out;
    answer(std::move(result));
  };
}

}  // namespace cairn::sim
