// Reads that an attach needs, and what whoever debugs a session asks; reads of clusters are in
// fetch_reader.cc.

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "kv-node/engine/session/attached_session.h"

namespace cairn::kv {
namespace {

absl::Status CarriedError(PartState state, const ClusterKey& key, const Part& part) {
  const auto what = fmt::format("carried entry of layer {} head {} at position {}", key.layer,
                                key.head, part.positions.first());
  if (state == PartState::kUnreadable) {
    return Unavailable(
        "{} cannot be read now, and nothing is known to be lost: check the disk of the KV node, "
        "whose log says what it answered, and open the session again",
        what);
  }
  return DataLoss(
      "{} fails its check, each of two times it was read; the session's tokens can still be read, "
      "and computed again",
      what);
}

}  // namespace

void AttachedSession::Reply(RequestId request_id, absl::StatusOr<ReadReply> reply) {
  // Rule 5: reads of an ended epoch are dropped.
  if (!stopped_ && observer_ != nullptr) observer_->OnReply(request_id, std::move(reply));
}

Applied AttachedSession::ApplyRead(RequestId request_id, const ReadOperation& operation) {
  const std::int32_t layer = std::visit(
      [](const auto& op) -> std::int32_t {
        if constexpr (requires { op.layer; }) {
          return op.layer;
        } else {
          return 0;
        }
      },
      operation);
  if (layer < 0 || layer >= row_.layout.layer_count) {
    Reply(request_id, InvalidArgument("layer {} does not exist: the session has {}", layer,
                                      row_.layout.layer_count));
    return Applied::kYes;
  }
  if (const auto* fetch = std::get_if<Fetch>(&operation)) {
    return fetch_reader_.StartFetch(request_id, *fetch);
  }
  if (const auto* index = std::get_if<FetchIndex>(&operation)) {
    return fetch_reader_.StartFetchIndex(request_id, *index);
  }
  if (const auto* carried = std::get_if<GetCarried>(&operation)) {
    return StartGetCarried(request_id, *carried);
  }
  if (const auto* index = std::get_if<GetIndex>(&operation)) {
    return index_.StartGet(request_id, *index);
  }
  if (const auto* tokens = std::get_if<GetTokens>(&operation)) {
    if (tokens->first < 0 || tokens->count < 0 || tokens->count > kGetTokensCountMax) {
      Reply(request_id, InvalidArgument("tokens from {}, {} of them: at most {} a call",
                                        tokens->first, tokens->count, kGetTokensCountMax));
      return Applied::kYes;
    }
    context_.Load<std::vector<std::int32_t>>(
        [segment = row_.segment, count = row_.token_count, op = *tokens](MetaReader& reader) {
          return LoadTokens(reader, segment, count, op.first, op.count);
        },
        [this, request_id, io = HoldIo()](absl::StatusOr<std::vector<std::int32_t>> ids) {
          if (!ids.ok()) return Reply(request_id, ids.status());
          Reply(request_id, ReadReply(TokensReply{*std::move(ids)}));
        });
    return Applied::kYes;
  }
  if (std::get_if<GetPolicyState>(&operation) != nullptr) {
    const PolicyRow& policy = checkpointer_.policy();
    Reply(request_id,
          ReadReply(PolicyStateReply{policy.version, policy.state, policy.random_state}));
  } else {
    Reply(request_id, ReadReply(ClustersReply{state_->ClustersOf(layer)}));
  }
  return Applied::kYes;
}

Applied AttachedSession::StartGetCarried(RequestId request_id, const GetCarried& op) {
  auto carried =
      std::make_shared<std::map<ClusterKey, std::vector<Part>>>(state_->CarriedOf(op.layer));
  std::vector<PartRead> reads;
  for (const auto& [key, parts] : *carried) {
    for (const Part& part : parts) reads.push_back({part, state_->EntryBytes(key), part.count()});
  }
  // Records of older segments cannot be named.
  const bool own =
      state_->open().has_checkpoint || FailPoint("a fork has its parent's records (rule 1)");
  const auto answer = [this, request_id, carried, own, io = HoldIo()](const PageSet& set) {
    if (stopped_) return;
    CarriedReply reply;
    reply.read_bytes = set.page_count() * kPageBytes;
    for (const auto& [key, parts] : *carried) {
      const std::int64_t entry_bytes = state_->EntryBytes(key);
      CarriedEntries entries;
      entries.head = key.head;
      entries.buffer_cluster_id = key.cluster_id;
      for (const Part& part : parts) {
        const PartState state = CheckPart(context_.store_id, part, entry_bytes, part.count(), set);
        if (state != PartState::kIntact) {
          context_.NoteState(state);
          return Reply(request_id, CarriedError(state, key, part));
        }
        entries.positions.AppendAll(part.positions);
        const auto bytes = set.Bytes(*part.extent, RangeOf(part, entry_bytes, 0, part.count()));
        entries.entries.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      if (own) entries.brought_positions = entries.positions;
      reply.carried.push_back(std::move(entries));
    }
    Reply(request_id, ReadReply(std::move(reply)));
  };
  if (reads.empty()) {
    answer(PageSet());
  } else {
    context_.ReadParts(std::move(reads), ReadCause::kFetch, answer);
  }
  return Applied::kYes;
}

absl::StatusOr<InspectionAnswer> AttachedSession::Inspect(
    const InspectionQuestion& question) const {
  const auto* about = std::get_if<ClusterQuestion>(&question);
  if (about == nullptr) {
    return ProgressAnswer{.epoch = epoch(),
                          .applied = applied_,
                          .queued_count = std::ssize(queue_),
                          .pending_bytes = state_->pending_bytes(),
                          .row_bytes = row_bytes(),
                          .has_channel = bound()};
  }
  const ClusterKey key{about->layer, about->cluster.head, about->cluster.cluster_id};
  if (key.layer < 0 || key.layer >= row_.layout.layer_count || !state_->Exists(key)) {
    return NotFound("session {} has no cluster {} in layer {} head {}", id_, key.cluster_id,
                    key.layer, key.head);
  }
  ClusterAnswer answer;
  answer.pending_count = state_->PendingCount(key);
  for (const Visible<StoredPart>& visible : state_->StoredPartsOf(key)) {
    const StoredPart& part = visible.part;
    answer.parts.push_back({part.kind, part.first_page, part.page_count,
                            part.positions.Slice(0, visible.count), visible.of_open_segment});
  }
  return answer;
}

}  // namespace cairn::kv
