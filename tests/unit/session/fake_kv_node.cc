#include "tests/unit/session/fake_kv_node.h"

#include <algorithm>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

using Entries = FakeKvState::Entries;

class FakeSession : public KvSession {
 public:
  FakeSession(FakeKvNode& node, SessionId id) : node_(node) {
    attachment_.session_id = id;
    Attach();
  }

  const Attachment& attachment() const override { return attachment_; }

  absl::Status Send(ChangingOperation operation) override {
    const auto* checkpoint = std::get_if<Checkpoint>(&operation);
    CAIRN_CHECK(checkpoint == nullptr || !in_progress_);
    CAIRN_RETURN_IF_ERROR(BeginCall());
    if (OperationBytes(operation) > kMessageBytesMax) return Fail(InvalidArgument("too large"));
    if (mode_ == ReplayMode::kOperations) {
      replay_bytes_ += OperationBytes(operation);
      replay_.push_back(operation);
    }
    CAIRN_RETURN_IF_ERROR(Fail(Apply(operation)));
    if (checkpoint == nullptr) return absl::OkStatus();
    in_progress_ = true;
    acknowledged_.token_count = checkpoint->token_count;
    if (std::exchange(node_.lose_checkpoint_answer, false)) Lose();
    return absl::OkStatus();
  }

  std::future<absl::StatusOr<ReadReply>> StartRead(ReadOperation operation) override {
    std::promise<absl::StatusOr<ReadReply>> promise;
    std::future<absl::StatusOr<ReadReply>> answer = promise.get_future();
    const absl::Status status = BeginCall();
    if (!status.ok()) {
      promise.set_value(status);
      return answer;
    }
    if (node_.fetches_to_stall > 0 && std::holds_alternative<Fetch>(operation)) {
      --node_.fetches_to_stall;
      stalled_.push_back(std::move(promise));
      return answer;
    }
    promise.set_value(std::visit([this](const auto& read) { return Answer(read); }, operation));
    return answer;
  }

  FetchClock& fetch_clock() override { return clock_; }
  void ReturnLeases() override {}
  bool checkpoint_in_progress() const override { return in_progress_; }
  void SetInterrupt(Interrupt interrupt) override { interrupt_ = std::move(interrupt); }
  absl::StatusOr<Checkpointed> WaitForCheckpoint() override {
    while (node_.stall_checkpoints) {
      node_.stall_checkpoints();
      CAIRN_RETURN_IF_ERROR(interrupt_());
    }
    in_progress_ = false;
    CAIRN_RETURN_IF_ERROR(BeginCall());
    return acknowledged_;
  }

  void SetReplayMode(ReplayMode mode) override { mode_ = mode; }
  std::int64_t replay_bytes() const override { return replay_bytes_; }
  std::int32_t reconnect_count() const override { return reconnect_count_; }

  absl::Status Reattach() override {
    if (node_.opened_by_another) return Aborted("opened by another");
    lost_ = false;
    in_progress_ = false;
    ++reconnect_count_;
    Attach();
    return absl::OkStatus();
  }

 private:
  void Attach() {
    const FakeKvRecord& record = node_.sessions.at(attachment_.session_id.value());
    live_ = record.committed;
    live_.staged.clear();
    attachment_.token_count = live_.token_count;
    attachment_.layout = record.created.layout;
    attachment_.uid = record.created.uid;
    attachment_.segment_start = live_.segment_start;
    attachment_.key = record.created.key;
    attachment_.next_cluster_ids = live_.next_cluster_ids;
  }

  absl::Status BeginCall() {
    ++node_.call_count;
    if (node_.calls_until_loss > 0 && --node_.calls_until_loss == 0) {
      node_.calls_until_loss = node_.loss_interval;
      if (!node_.further_losses.empty()) {
        node_.calls_until_loss = node_.further_losses.back();
        node_.further_losses.pop_back();
      }
      Lose();
    }
    if (lost_) return Aborted("the KV node was lost and nothing is kept");
    return failure_;
  }

  absl::Status Fail(const absl::Status& status) {
    if (failure_.ok()) failure_ = status;
    return absl::OkStatus();  // shows at the next call, as promised
  }

  void Lose() {
    ++node_.loss_count;
    if (mode_ == ReplayMode::kNothing) {
      lost_ = true;
      return;
    }
    ++reconnect_count_;
    live_ = node_.sessions.at(attachment_.session_id.value()).committed;
    live_.staged.clear();
    const std::vector<ChangingOperation> again = replay_;
    for (const ChangingOperation& operation : again) CAIRN_CHECK(Apply(operation).ok());
  }

  absl::Status Apply(const ChangingOperation& operation) {
    return std::visit([this](const auto& change) { return Change(change); }, operation);
  }

  absl::Status Change(const Append& append) {
    std::int64_t bytes = 0;
    for (const ClusterEntries& grown : append.clusters) {
      Entries& entries = live_.clusters[{append.layer, grown.cluster}];
      const std::int64_t size = attachment_.layout.EntryBytes(grown.cluster.head);
      bytes += std::ssize(grown.entries);
      if (std::ssize(grown.entries) != grown.positions.count() * size) {
        return InvalidArgument("append has the wrong size");
      }
      if (!entries.empty() && entries.rbegin()->first >= grown.positions.first()) {
        return InvalidArgument("append is not above the cluster's positions");
      }
      std::int64_t index = 0;
      grown.positions.ForEach([&](std::int64_t position) {
        entries[position] = grown.entries.substr(static_cast<std::size_t>(index++ * size),
                                                 static_cast<std::size_t>(size));
      });
    }
    node_.append_bytes_max = std::max(node_.append_bytes_max, bytes);
    return absl::OkStatus();
  }
  absl::Status Change(const Replace&) { return Unimplemented("replace"); }
  absl::Status Change(const PutIndexRows&) { return Unimplemented("index"); }
  absl::Status Change(const Evict&) { return Unimplemented("evict"); }
  absl::Status Change(const PutPolicyState& state) {
    live_.staged_policy = state;
    return absl::OkStatus();
  }

  absl::Status Change(const StageCarried& stage) {
    const std::int64_t size = attachment_.layout.EntryBytes(0);
    for (const CarriedEntries& carried : stage.carried) {
      Entries& records = live_.records[{stage.layer, carried.head}];
      if (std::ssize(carried.entries) != carried.brought_positions.count() * size) {
        return InvalidArgument("carried entries have the wrong size");
      }
      std::int64_t index = 0;
      bool twice = false;
      carried.brought_positions.ForEach([&](std::int64_t position) {
        twice |=
            !records
                 .emplace(position, carried.entries.substr(static_cast<std::size_t>(index++ * size),
                                                           static_cast<std::size_t>(size)))
                 .second;
      });
      bool missing = false;
      carried.positions.ForEach(
          [&](std::int64_t position) { missing |= !records.contains(position); });
      if (twice || missing) return InvalidArgument("entries brought twice or never");
      live_.staged[{stage.layer, carried.head}] = carried.positions;
    }
    return absl::OkStatus();
  }

  absl::Status CheckPositions(const Checkpoint& checkpoint) {
    const EntryLayout& layout = attachment_.layout;
    for (std::int32_t layer = 0; layer < layout.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout.head_count; ++head) {
        std::vector<std::int64_t> all;
        for (const auto& [key, entries] : live_.clusters) {
          const bool counts = key.second.head == head || key.second.head == kAllHeads;
          if (key.first != layer || !counts) continue;
          for (const auto& [position, bytes] : entries) all.push_back(position);
        }
        live_.staged[{layer, head}].ForEach(
            [&](std::int64_t position) { all.push_back(position); });
        std::sort(all.begin(), all.end());
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i] != static_cast<std::int64_t>(i)) {
            return FailedPrecondition("layer {} head {}: position {} where {} belongs", layer, head,
                                      all[i], i);
          }
        }
        if (std::ssize(all) != checkpoint.token_count) {
          return FailedPrecondition("layer {} head {}: {} positions of {}", layer, head, all.size(),
                                    checkpoint.token_count);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Change(const Checkpoint& checkpoint) {
    CAIRN_RETURN_IF_ERROR(CheckPositions(checkpoint));
    if (checkpoint.token_ids_start > live_.token_count ||
        checkpoint.token_ids_start + std::ssize(checkpoint.token_ids) != checkpoint.token_count) {
      return InvalidArgument("token ids have a gap");
    }
    live_.tokens.resize(static_cast<std::size_t>(checkpoint.token_ids_start));
    live_.tokens.insert(live_.tokens.end(), checkpoint.token_ids.begin(),
                        checkpoint.token_ids.end());
    live_.token_count = checkpoint.token_count;
    live_.carried = std::exchange(live_.staged, {});
    for (auto& [key, records] : live_.records) {
      const Positions& positions = live_.carried[key];
      std::erase_if(records, [&](const auto& record) { return !positions.Contains(record.first); });
    }
    live_.carried_entries = live_.records;
    if (checkpoint.seal && checkpoint.token_count > live_.segment_start) {
      live_.segment_start = checkpoint.token_count;
      live_.records.clear();
    }
    live_.policy = live_.staged_policy;
    live_.random_state = checkpoint.random_state;
    live_.next_cluster_ids = checkpoint.next_cluster_ids;
    node_.sessions.at(attachment_.session_id.value()).committed = live_;
    ++node_.checkpoint_count;
    replay_.clear();
    replay_bytes_ = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<ReadReply> Answer(const Fetch& fetch) {
    FetchReply reply;
    for (const ClusterRef& ref : fetch.clusters) {
      FetchedCluster& cluster = reply.clusters.emplace_back();
      cluster.cluster = ref;
      const auto found = live_.clusters.find({fetch.layer, ref});
      if (found == live_.clusters.end()) {
        cluster.outcome = FetchOutcome::kUnknown;
        continue;
      }
      const std::vector<std::pair<std::int64_t, std::string>> entries(found->second.begin(),
                                                                      found->second.end());
      for (std::size_t first = 0; first < entries.size();) {
        const std::size_t left = entries.size() - first;
        const std::size_t count = node_.cut_spans ? 1 + node_.random() % left : left;
        cluster.spans.push_back(
            MakeSpan(std::span(entries).subspan(first, count), fetch.with_positions));
        first += count;
      }
    }
    if (node_.tamper) node_.tamper(fetch, reply);
    return reply;
  }

  Span MakeSpan(std::span<const std::pair<std::int64_t, std::string>> entries,
                bool with_positions) {
    Span span;
    span.entry_count = std::ssize(entries);
    span.direction = node_.cut_spans && node_.random() % 2 == 0 ? Direction::kDown : Direction::kUp;
    auto bytes = std::make_shared<std::string>();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (with_positions) span.positions.Append(entries[i].first);
      const std::size_t from = span.direction == Direction::kUp ? i : entries.size() - 1 - i;
      *bytes += entries[from].second;
    }
    node_.fetched_bytes += std::ssize(*bytes);
    span.bytes = std::as_bytes(std::span(*bytes));
    span.owner = bytes;
    return span;
  }

  absl::StatusOr<ReadReply> Answer(const GetIndex&) { return IndexReply(); }
  absl::StatusOr<ReadReply> Answer(const FetchIndex&) {
    FetchReply reply;
    reply.clusters.emplace_back().cluster = {kAllHeads, ClusterId(1)};
    return reply;
  }
  absl::StatusOr<ReadReply> Answer(const GetCarried& read) {
    const FakeKvState& committed = node_.sessions.at(attachment_.session_id.value()).committed;
    CarriedReply reply;
    for (const auto& layer_head : committed.carried) {
      const auto& key = layer_head.first;
      const Positions& positions = layer_head.second;
      if (key.first != read.layer) continue;
      CarriedEntries& carried = reply.carried.emplace_back();
      carried.head = key.second;
      carried.buffer_cluster_id = kWindowBuffer;
      carried.positions = positions;
      if (committed.records.contains(key)) carried.brought_positions = positions;
      positions.ForEach([&](std::int64_t position) {
        carried.entries += committed.carried_entries.at(key).at(position);
      });
    }
    return reply;
  }
  absl::StatusOr<ReadReply> Answer(const GetTokens& read) {
    TokensReply reply;
    const std::int64_t end = std::min(read.first + read.count, std::ssize(live_.tokens));
    for (std::int64_t i = read.first; i < end; ++i) {
      reply.token_ids.push_back(live_.tokens[static_cast<std::size_t>(i)]);
    }
    return reply;
  }
  absl::StatusOr<ReadReply> Answer(const GetPolicyState&) {
    ++node_.policy_read_count;
    return PolicyStateReply{live_.policy.version, live_.policy.state, live_.random_state};
  }
  absl::StatusOr<ReadReply> Answer(const GetClusters&) { return ClustersReply(); }

  FakeKvNode& node_;
  Attachment attachment_;
  FakeKvState live_;
  ReplayMode mode_ = ReplayMode::kOperations;
  std::vector<ChangingOperation> replay_;
  std::int64_t replay_bytes_ = 0;
  std::int32_t reconnect_count_ = 0;
  bool lost_ = false;
  bool in_progress_ = false;
  Checkpointed acknowledged_;
  absl::Status failure_;
  FetchClock clock_;
  std::vector<std::promise<absl::StatusOr<ReadReply>>> stalled_;
  Interrupt interrupt_;
};

}  // namespace

absl::StatusOr<SessionRef> FakeKvNode::Create(const CreateSession& request) {
  const std::int64_t id = std::ssize(sessions) + 1;
  sessions[id].created = request;
  sessions[id].created.uid = fmt::format("uid of {:9}", id);
  return SessionRef{SessionId(id), sessions[id].created.uid};
}

absl::Status FakeKvNode::Find(const SessionRef& session) const {
  const auto found = sessions.find(session.id.value());
  if (found == sessions.end()) return NotFound("no session {}", session.id);
  if (IsMeant(session, found->second.created.uid)) return absl::OkStatus();
  return FailedPrecondition("session {} is another one", session.id);
}

absl::StatusOr<std::unique_ptr<KvSession>> FakeKvNode::Open(const SessionRef& session) {
  CAIRN_RETURN_IF_ERROR(Find(session));
  return std::make_unique<FakeSession>(*this, session.id);
}

absl::Status FakeKvNode::Delete(const SessionRef& session) {
  CAIRN_RETURN_IF_ERROR(Find(session));
  if (refuse_deletions) return Unavailable("no deletions now");
  sessions.erase(session.id.value());
  return absl::OkStatus();
}

absl::StatusOr<SessionInfo> FakeKvNode::Get(const SessionRef& session, ListDetail detail) {
  CAIRN_RETURN_IF_ERROR(Find(session));
  CAIRN_ASSIGN_OR_RETURN(std::vector<SessionInfo> infos, List(detail));
  return *std::find_if(infos.begin(), infos.end(),
                       [&](const SessionInfo& info) { return info.session_id == session.id; });
}

absl::StatusOr<std::vector<SessionInfo>> FakeKvNode::List(ListDetail /*detail*/) {
  std::vector<SessionInfo> infos;
  for (const auto& [id, record] : sessions) {
    SessionInfo& info = infos.emplace_back();
    info.session_id = SessionId(id);
    info.uid = record.created.uid;
    info.token_count = record.committed.token_count;
    info.key = record.created.key;
    info.layout = record.created.layout;
    info.label = record.created.label;
    info.creator = record.created.creator;
    info.lifetime = record.created.lifetime;
    info.attached = record.attached;
  }
  return infos;
}

absl::Status FakeKvNode::Supersede(const Supersession& request) {
  CAIRN_RETURN_IF_ERROR(Find(request.session));
  CAIRN_RETURN_IF_ERROR(Find(request.replacement));
  FakeKvRecord& session = sessions.at(request.session.id.value());
  const FakeKvRecord& replacement = sessions.at(request.replacement.id.value());
  if (session.attached || replacement.attached) return FailedPrecondition("somebody is attached");
  if (session.committed.tokens != replacement.committed.tokens) {
    return FailedPrecondition("not the same tokens");
  }
  if (session.created.key != replacement.created.key) {
    return FailedPrecondition("not the same model, adapter or KV format");
  }
  session.committed = replacement.committed;
  sessions.erase(request.replacement.id.value());
  return absl::OkStatus();
}

absl::StatusOr<SealedSegment> FakeKvNode::Seal(const SessionRef&) { return Unimplemented("seal"); }

}  // namespace cairn::compute
