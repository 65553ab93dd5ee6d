// What a chat asks for and sends, and whether the answers are right.
#include <algorithm>
#include <utility>

#include "common/rpc/kv_codec.h"
#include "tests/sim/sim_chat.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::sim {
namespace {

constexpr std::int64_t kTokensMax = 120;

}  // namespace

void SimChat::Act() {
  if (rests_ > 0) return static_cast<void>(--rests_);
  GiveSomeBack();
  if (TakesPlace()) return;
  const bool can_work = IsAttached() && protocol_ != nullptr &&
                        protocol_->state() == State::kOpen && carried_to_come_ == 0 && !deletes_;
  if (!can_work || calls_ || !unsent_.empty()) return GoOn();
  DoRandom();
}

std::shared_ptr<const kv::Oracle> SimChat::Now() {
  if (shared_now_ == nullptr) shared_now_ = std::make_shared<kv::Oracle>(now_);
  return shared_now_;
}

kv::Oracle& SimChat::Change() {
  shared_now_ = nullptr;
  return now_;
}

void SimChat::Send(ChangingOperation operation) {
  if (protocol_->state() != State::kOpen) return;
  unsent_.push_back(std::move(operation));
  if (unsent_.size() == 1) SendUnsent();
}

bool SimChat::MayKeep(const ChangingOperation& operation) const {
  return std::holds_alternative<Checkpoint>(operation) ||
         protocol_->replay_bytes() + OperationBytes(operation) <= replay_bytes_max_;
}

// As far as it can be kept: the caller of one that cannot asks again later.
void SimChat::SendUnsent() {
  for (; !unsent_.empty(); unsent_.pop_front()) {
    const ChangingOperation& operation = unsent_.front();
    const bool may_send = !protocol_->keeps() || MayKeep(operation);
    const absl::StatusOr<OpSeq> op_seq =
        protocol_->Number(compute::SessionProtocol::Describe(operation, protocol_->keeps()));
    if (op_seq.ok() != may_send || (!may_send && !absl::IsResourceExhausted(op_seq.status()))) {
      return context_.Wrong("session {} with {} of {} bytes kept: {}", session_.id,
                            protocol_->replay_bytes(), replay_bytes_max_,
                            op_seq.status().ToString());
    }
    if (!may_send) return static_cast<void>(++context_.counts["replay buffer full"]);
    if (std::holds_alternative<Checkpoint>(operation)) {
      checkpoint_ = *op_seq;
      saved_[checkpoint_] = Now();
      recorded_.clear();
    }
    pb::ChannelRequest message;
    rpc::SetOperation(std::move(unsent_.front()), &message);
    message.set_op_seq(op_seq->value());
    Write(std::move(message));
  }
}

// A checkpoint that is under way will; else its process keeps nothing, or gives up.
void SimChat::MakeRoom() {
  SendUnsent();
  if (unsent_.empty() || protocol_->checkpoint_in_progress()) return;
  if (context_.random(4) == 0) return Crash();
  protocol_->SetReplayMode(compute::ReplayMode::kNothing);
  ++context_.counts["kept nothing more"];
}

void SimChat::Ask(ReadOperation operation) {
  if (protocol_->reads_full()) return;
  pb::ChannelRequest message;
  rpc::SetOperation(operation, &message);
  compute::SessionProtocol::Asked asked = protocol_->Ask(operation);
  message.set_request_id(asked.id.value());
  message.set_after_op_seq(asked.after.value());
  expected_[asked.id] = {std::move(operation), asked.after, Now(), std::move(asked.answer)};
  Write(std::move(message));
}

void SimChat::Decode(std::optional<std::int64_t> truth) {
  for (Append& op : context_.operations.Decode(Change(), /*fresh_one_in=*/8, truth)) {
    Send(std::move(op));
  }
}

void SimChat::DoRandom() {
  kv::RandomOperations& operations = context_.operations;
  // What is to take another one's place stays as it is.
  if (MayHaveTakenPlace()) return AskSome();
  if (protocol_->wants_checkpoint()) return TakeCheckpoint();
  if (context_.random(60) == 0) {
    protocol_->SetReplayMode(context_.random(4) == 0 ? compute::ReplayMode::kNothing
                                                     : compute::ReplayMode::kOperations);
  }
  if (KeepsLittle() && context_.random(4) == 0) {
    protocol_->SetReplayMode(compute::ReplayMode::kOperations);
    // Mostly before it is full.
    if (protocol_->replay_bytes() > replay_bytes_max_ / 2) return TakeCheckpoint();
  }
  const std::int64_t dice = context_.random(100);
  if (dice < 45) {
    if (IsReplacement()) return Repeat();
    if (now_.token_count < kTokensMax) Decode(std::nullopt);
  } else if (dice < 62) {
    AskSome();
  } else if (dice < 70) {
    for (Replace& op : operations.Split(Change())) Send(std::move(op));
  } else if (dice < 73) {
    for (Replace& op : operations.Merge(Change())) Send(std::move(op));
  } else if (dice < 75) {
    if (std::optional<Replace> op = operations.Repair(Change())) Send(*std::move(op));
  } else if (dice < 77) {
    if (std::optional<ChangingOperation> op = operations.Evict(Change())) Send(*std::move(op));
  } else if (dice < 82) {
    Send(operations.PutRows(Change()));
  } else if (dice < 98) {
    TakeCheckpoint();
  } else {
    AskAll();
  }
}

void SimChat::TakeCheckpoint() {
  if (protocol_->checkpoint_in_progress()) return;
  kv::RandomOperations& operations = context_.operations;
  for (StageCarried& stage : operations.StageAllCarried(now_, recorded_)) Send(std::move(stage));
  const bool seal = context_.random(5) == 0;
  Checkpoint op = operations.TakeCheckpoint(now_, saved_.at(acked_)->token_count, seal);
  seals_ = seal;
  Send(std::move(op));
}

void SimChat::AskSome() {
  const auto layer = static_cast<std::int32_t>(context_.random(2));
  const std::int64_t dice = context_.random(8);
  if (dice == 0) return Ask(GetIndex{layer});
  if (dice == 1) return Ask(FetchIndex{layer, true});
  if (dice == 2) {
    return Ask(GetTokens{0, static_cast<std::int32_t>(saved_.at(acked_)->token_count)});
  }
  Fetch fetch{layer, {}, /*with_positions=*/true};
  for (const std::int32_t head : kv::RandomOperations::HeadsOf(layer)) {
    const auto next_id = now_.next_id.find({layer, head});
    const std::int64_t last = next_id == now_.next_id.end() ? 0 : next_id->second;
    fetch.clusters.push_back({head, ClusterId(1 + context_.random(last + 2))});
  }
  Ask(std::move(fetch));
}

void SimChat::AskAll() {
  for (std::int32_t layer = 0; layer < context_.operations.layout().layer_count; ++layer) {
    Fetch fetch{layer, {}, /*with_positions=*/true};
    for (const std::int32_t head : kv::RandomOperations::HeadsOf(layer)) {
      const auto next_id = now_.next_id.find({layer, head});
      if (next_id == now_.next_id.end()) continue;
      for (std::int64_t id = 1; id <= next_id->second; ++id) {
        fetch.clusters.push_back({head, ClusterId(id)});
      }
    }
    if (!fetch.clusters.empty()) Ask(std::move(fetch));
    Ask(GetIndex{layer});
  }
}

void SimChat::CheckAnswer(Expected& expected) {
  absl::StatusOr<ReadReply> answer = expected.answer.get();
  const auto* carried = std::get_if<GetCarried>(&expected.operation);
  if (carried != nullptr) --carried_to_come_;
  if (!answer.ok()) return CheckRefusal(expected, answer.status());
  const kv::Oracle& oracle = *expected.oracle;
  ++context_.counts["answer"];
  // A client would ask once more.
  const auto* fetched = std::get_if<FetchReply>(&*answer);
  if (fetched != nullptr && IsVoid(*fetched, stream_)) return;
  if (carried != nullptr) {
    CheckCarried(oracle, carried->layer, std::get<CarriedReply>(*answer));
  } else if (const auto* fetch = std::get_if<Fetch>(&expected.operation)) {
    CheckFetch(oracle, *fetch, std::get<FetchReply>(*answer));
    Hold(std::get<FetchReply>(*std::move(answer)));
  } else if (const auto* index = std::get_if<GetIndex>(&expected.operation)) {
    const auto& rows = std::get<IndexReply>(*answer).rows;
    if (!AreRowsOf(oracle, index->layer, rows)) {
      context_.Wrong("session {} layer {}: other index rows", session_.id, index->layer);
    }
  } else if (const auto* records = std::get_if<FetchIndex>(&expected.operation)) {
    const auto rows = kv::RandomOperations::VisibleRowsOf(std::get<FetchReply>(*answer));
    if (!AreRowsOf(oracle, records->layer, rows)) {
      context_.Wrong("session {} layer {}: other index records", session_.id, records->layer);
    }
    Hold(std::get<FetchReply>(*std::move(answer)));
  } else if (const auto* tokens = std::get_if<GetTokens>(&expected.operation)) {
    const auto& ids = std::get<TokensReply>(*answer).token_ids;
    bool same = std::ssize(ids) == tokens->count;
    for (std::size_t i = 0; same && i < static_cast<std::size_t>(tokens->count); ++i) {
      same = ids[i] == oracle.truth[i];
    }
    if (!same) context_.Wrong("session {}: other tokens", session_.id);
  }
}

bool SimChat::AreRowsOf(const kv::Oracle& oracle, std::int32_t layer,
                        const std::vector<IndexRow>& rows) const {
  return store_->is_damaged ? kv::RandomOperations::AreSomeRowsOf(oracle, layer, rows)
                            : kv::RandomOperations::AreRowsOf(oracle, layer, rows);
}

void SimChat::CheckRefusal(const Expected& expected, const absl::Status& status) {
  const std::string said = Message(status);
  const bool has_carried = std::holds_alternative<GetCarried>(expected.operation);
  if (store_->is_damaged && said.find("fails its check, each of two") != std::string::npos) {
    ++context_.counts["lost"];
    // Nobody can go on without these.
    if (has_carried) deletes_ = true;
    return;
  }
  const bool may_be =
      context_.node.has_io_faults() && said.find("cannot be read now") != std::string::npos;
  if (!may_be) return context_.Wrong("session {}: {}", session_.id, Message(status));
  ++context_.counts["unreadable"];
  // Without these it cannot begin: another process tries again.
  if (has_carried) Crash();
}

void SimChat::CheckFetch(const kv::Oracle& oracle, const Fetch& fetch, const FetchReply& reply) {
  if (reply.clusters.size() != fetch.clusters.size()) return context_.Wrong("other clusters");
  for (std::size_t i = 0; i < reply.clusters.size(); ++i) {
    const FetchedCluster& fetched = reply.clusters[i];
    if (fetched.cluster != fetch.clusters[i]) return context_.Wrong("other clusters");
    const kv::Oracle::LayerHead layer_head{fetch.layer, fetched.cluster.head};
    const std::int64_t id = fetched.cluster.cluster_id.value();
    const auto clusters = oracle.clusters.find(layer_head);
    const bool is_there = clusters != oracle.clusters.end() && clusters->second.contains(id);
    const FetchOutcome outcome = is_there ? FetchOutcome::kFound : FetchOutcome::kUnknown;
    const auto wrong = [&](std::string_view what) {
      context_.Wrong("session {} layer {} head {} cluster {}: {}", session_.id, fetch.layer,
                     fetched.cluster.head, id, what);
    };
    if (fetched.outcome == FetchOutcome::kUnreadable && context_.node.has_io_faults()) {
      ++context_.counts["unreadable"];
      continue;
    }
    if (is_there && fetched.outcome == FetchOutcome::kLost && store_->is_damaged) {
      ++context_.counts["lost"];
      continue;
    }
    if (fetched.outcome != outcome) {
      return wrong(fmt::format("outcome {}, not {}", static_cast<int>(fetched.outcome),
                               static_cast<int>(outcome)));
    }
    if (!is_there) continue;
    const kv::JoinedCluster joined = kv::Join(context_.operations.layout(), fetched);
    const Positions positions = Positions::FromUnsorted(clusters->second.at(id));
    if (!(joined.positions == positions)) return wrong("other positions");
    if (joined.entries !=
        context_.operations.Entries(oracle, fetch.layer, fetched.cluster.head, positions)) {
      return wrong("other entries");
    }
  }
}

void SimChat::CheckCarried(const kv::Oracle& oracle, std::int32_t layer,
                           const CarriedReply& reply) {
  if (!context_.operations.AreCarriedOf(oracle, layer, reply.carried)) {
    return context_.Wrong("session {} layer {}: other carried entries", session_.id, layer);
  }
  for (const CarriedEntries& carried : reply.carried) {
    carried.brought_positions.ForEach([&](std::int64_t p) { recorded_.insert(p); });
  }
}

}  // namespace cairn::sim
