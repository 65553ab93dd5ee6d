#include "compute-node/session/stored_kv.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "compute-node/kernels/kv_entry.h"

namespace cairn::compute {
namespace {

// Tokens whose rows one task converts.
constexpr std::int64_t kConvertTokens = 64;

}  // namespace

StoredKv::StoredKv(const Options& options, const ModelConfig& config, ThreadPool& pool,
                   PassScratch& scratch, KvSession& session, RetrievalPolicy& policy,
                   KvMemory& memory)
    : options_(options),
      entry_bytes_(options.layout.EntryBytes(0)),
      pool_(pool),
      session_(session),
      policy_(policy),
      memory_(memory),
      scratch_(scratch),
      attention_(config, options.layout.kv_format, pool),
      pipeline_({.layer_count = options.layout.layer_count,
                 .entry_bytes = options.layout.EntryBytes(0),
                 .slices_in_flight_max = options.slices_in_flight_max},
                memory),
      window_(options.layout, options.window_tokens_max),
      window_charge_(memory, window_.size_bytes()),
      stored_counts_(static_cast<std::size_t>(options.layout.layer_count), 0),
      recorded_(stored_counts_.size() * static_cast<std::size_t>(options.layout.head_count)),
      staged_(recorded_.size()) {}

absl::Status StoredKv::Restore(std::string& random_state) {
  AbandonPass();
  const Attachment& attachment = session_.attachment();
  token_count_ = attachment.token_count;
  std::fill(recorded_.begin(), recorded_.end(), Positions());
  std::fill(stored_counts_.begin(), stored_counts_.end(), 0);
  PolicyStateReply stored;
  if (token_count_ > 0) {
    CAIRN_ASSIGN_OR_RETURN(stored, Wait<PolicyStateReply>(session_.StartRead(GetPolicyState())));
  }
  const std::vector<std::int64_t> next_ids =
      token_count_ > 0 ? attachment.next_cluster_ids : std::vector<std::int64_t>();
  CAIRN_RETURN_IF_ERROR(
      Annotate(policy_.RestoreState({.version = stored.version,
                                     .state = stored.state,
                                     .next_cluster_ids = next_ids,
                                     .token_count = token_count_,
                                     .state_token_count = attachment.policy_token_count}),
               fmt::format("open conversation {}", attachment.session_id)));
  // A fork from an earlier token begins with random numbers of its own.
  const bool forked = token_count_ < attachment.policy_token_count;
  random_state = forked ? std::string() : std::move(stored.random_state);
  if (token_count_ == 0) return absl::OkStatus();
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    CAIRN_ASSIGN_OR_RETURN(const CarriedReply reply,
                           Wait<CarriedReply>(session_.StartRead(GetCarried{layer})));
    CAIRN_RETURN_IF_ERROR(RestoreLayer(layer, reply));
  }
  return absl::OkStatus();
}

absl::Status StoredKv::RestoreLayer(std::int32_t layer, const CarriedReply& reply) {
  const auto wrong = [&](std::string_view what) {
    return DataLoss("open conversation {}: window of layer {}: {}",
                    session_.attachment().session_id, layer, what);
  };
  // Forked from before its window.
  if (reply.carried.empty() && token_count_ < session_.attachment().policy_token_count) {
    stored_counts_[static_cast<std::size_t>(layer)] = token_count_;
    return absl::OkStatus();
  }
  if (std::ssize(reply.carried) != options_.layout.head_count) {
    return wrong(
        fmt::format("{} heads came, not {}", reply.carried.size(), options_.layout.head_count));
  }
  std::int64_t first = -1;
  for (const CarriedEntries& carried : reply.carried) {
    const Positions& positions = carried.positions;
    if (carried.head < 0 || carried.head >= options_.layout.head_count ||
        carried.buffer_cluster_id != kWindowBuffer) {
      return wrong(
          fmt::format("unexpected head {} buffer {}", carried.head, carried.buffer_cluster_id));
    }
    const bool newest =
        !positions.empty() && positions.count() <= window_.capacity() &&
        positions == Positions::Range(token_count_ - positions.count(), positions.count());
    if (!newest || std::ssize(carried.entries) != positions.count() * entry_bytes_ ||
        (first >= 0 && positions.first() != first)) {
      return wrong(fmt::format("{} positions in {} bytes before token {}", positions.count(),
                               carried.entries.size(), token_count_));
    }
    first = positions.first();
    for (std::int64_t i = 0; i < positions.count(); ++i) {
      std::memcpy(window_.Entry(layer, carried.head, first + i),
                  carried.entries.data() + i * entry_bytes_,
                  static_cast<std::size_t>(entry_bytes_));
    }
    recorded_[RowOf(layer, carried.head)] = carried.brought_positions;
  }
  stored_counts_[static_cast<std::size_t>(layer)] = first;
  return absl::OkStatus();
}

void StoredKv::StartPass(std::int64_t token_count, const StopSignal& stop, LayerDone layer_done) {
  CAIRN_CHECK_EQ(pass_tokens_, 0);
  CAIRN_CHECK_GE(token_count, 1);
  pass_tokens_ = token_count;
  stop_ = &stop;
  layer_done_ = std::move(layer_done);
  const std::int64_t chunk_bytes = token_count * options_.layout.EntryBytes(kAllHeads);
  if (std::ssize(chunk_) != chunk_bytes) {
    chunk_charge_.Release();
    chunk_ = std::vector<std::byte>(static_cast<std::size_t>(chunk_bytes));
    chunk_charge_ = KvMemoryCharge(memory_, chunk_bytes);
  }
  const auto plan = [this](std::int32_t layer) {
    return policy_.Select(
        {.layer = layer,
         .stored_token_count = stored_counts_[static_cast<std::size_t>(layer)],
         .queries = policy_.selects_without_queries() ? std::span<const float>() : queries_});
  };
  pipeline_.StartPass(session_, plan, policy_.selects_without_queries());
}

// Behind the attention over a slice: whether its bytes were there all the time.
absl::Status StoredKv::CheckIntact(const FetchReply& reply) {
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      if (!span.WasIntact()) return Aborted("the KV node took back memory that was being read");
    }
  }
  return absl::OkStatus();
}

std::int64_t StoredKv::WholeBlocksEnd(std::int32_t layer) const {
  return stored_counts_[static_cast<std::size_t>(layer)] / kAttentionBlockEntries *
         kAttentionBlockEntries;
}

// The slots are free: the window's start is a multiple of its step, so it is at this block or
// before it as long as what leaves the window has not filled the block up.
void StoredKv::TakePartialBlock(std::int32_t layer, ArrivedSlice& slice) {
  const std::int64_t end = WholeBlocksEnd(layer);
  if (end == stored_counts_[static_cast<std::size_t>(layer)]) return;
  for (std::size_t i = 0; i < slice.clusters.size(); ++i) {
    EntryRun& run = slice.clusters[i];
    std::int64_t kept = 0;
    for (const Span& span : slice.reply.clusters[i].spans) {
      const std::int64_t below = span.positions.CountBelow(end);
      for (std::int64_t j = below; j < span.entry_count; ++j) {
        std::memcpy(window_.Entry(layer, run.head, span.positions.at(j)),
                    span.Entry(j, entry_bytes_), static_cast<std::size_t>(entry_bytes_));
      }
      kept += below;
    }
    run.entries.resize(static_cast<std::size_t>(kept));
  }
}

absl::Status StoredKv::Attend(const AttentionBatch& batch) {
  CAIRN_CHECK_EQ(batch.first_position, token_count_);
  CAIRN_CHECK_EQ(batch.token_count, pass_tokens_);
  CAIRN_RETURN_IF_ERROR(stop_->Check());
  StoreChunk(batch);
  queries_ = batch.q;
  HintNextLayer(batch.layer);
  attention_.Start(batch, scratch_.For(batch.token_count));
  pipeline_.StartLayer(batch.layer);
  while (pipeline_.HasNext()) {
    CAIRN_ASSIGN_OR_RETURN(ArrivedSlice slice, pipeline_.Next(*stop_));
    TakePartialBlock(batch.layer, slice);
    attention_.AttendAll(slice.clusters);
    CAIRN_RETURN_IF_ERROR(CheckIntact(slice.reply));
    if (batch.between != nullptr) (*batch.between)();
  }
  AttendRecent(batch);
  attention_.Finish();
  const std::int64_t end = token_count_ + pass_tokens_;
  const std::int64_t stored_until = std::max(stored_counts_[static_cast<std::size_t>(batch.layer)],
                                             WindowStart(end, window_.capacity()));
  CAIRN_RETURN_IF_ERROR(AppendLeaving(batch.layer, stored_until));
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    for (std::int64_t at = std::max(token_count_, stored_until); at < end; ++at) {
      std::memcpy(window_.Entry(batch.layer, head, at), EntryAt(batch.layer, head, at),
                  static_cast<std::size_t>(entry_bytes_));
    }
  }
  if (layer_done_) layer_done_(batch.layer + 1);
  return absl::OkStatus();
}

// A policy that needs a layer's queries cannot ask for its clusters before they are there; what the
// KV node guesses can be read meanwhile. One that needs none has asked for them already. Behind the
// last layer comes the first one of the next pass.
void StoredKv::HintNextLayer(std::int32_t layer) {
  if (policy_.selects_without_queries()) return;
  session_.SendHint(LayerHint{(layer + 1) % options_.layout.layer_count});
}

void StoredKv::CommitPass() {
  token_count_ += pass_tokens_;
  AbandonPass();
}

void StoredKv::AbandonPass() {
  pipeline_.Reset();
  session_.ReturnLeases();
  // A buffer for one token is kept for the next step; one for a chunk is not worth its memory.
  if (pass_tokens_ != 1) {
    chunk_ = std::vector<std::byte>();
    chunk_charge_.Release();
  }
  pass_tokens_ = 0;
  stop_ = nullptr;
  layer_done_ = nullptr;
  queries_ = {};
}

const std::byte* StoredKv::EntryAt(std::int32_t layer, std::int32_t head,
                                   std::int64_t position) const {
  if (position < token_count_) return window_.Entry(layer, head, position);
  const std::int64_t index = head * pass_tokens_ + position - token_count_;
  return chunk_.data() + index * entry_bytes_;
}

void StoredKv::StoreChunk(const AttentionBatch& batch) {
  const std::int64_t head_count = options_.layout.head_count;
  const std::int64_t head_dim = options_.layout.head_dim;
  const KvFormat format = options_.layout.kv_format;
  const std::int64_t blocks = (batch.token_count + kConvertTokens - 1) / kConvertTokens;
  pool_.ParallelFor(blocks, [&](std::int64_t block) {
    const std::int64_t end = std::min(batch.token_count, (block + 1) * kConvertTokens);
    for (std::int64_t token = block * kConvertTokens; token < end; ++token) {
      for (std::int64_t head = 0; head < head_count; ++head) {
        std::byte* entry = chunk_.data() + (head * pass_tokens_ + token) * entry_bytes_;
        const std::size_t from = static_cast<std::size_t>((token * head_count + head) * head_dim);
        const std::size_t count = static_cast<std::size_t>(head_dim);
        StoreKvEntry(batch.k.subspan(from, count), batch.v.subspan(from, count), format, entry);
      }
    }
  });
}

void StoredKv::AttendRecent(const AttentionBatch& batch) {
  const std::int64_t first = WholeBlocksEnd(batch.layer);
  std::vector<EntryRun> runs(static_cast<std::size_t>(options_.layout.head_count));
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    EntryRun& run = runs[static_cast<std::size_t>(head)];
    run.head = head;
    run.entries.reserve(static_cast<std::size_t>(token_count_ + pass_tokens_ - first));
    for (std::int64_t at = first; at < token_count_ + pass_tokens_; ++at) {
      run.entries.push_back(EntryAt(batch.layer, head, at));
    }
  }
  attention_.AttendCausal(runs, first);
}

absl::Status StoredKv::AppendLeaving(std::int32_t layer, std::int64_t stored_until) {
  std::int64_t& stored = stored_counts_[static_cast<std::size_t>(layer)];
  if (stored_until == stored) return absl::OkStatus();
  const std::vector<Assignment> assignments = policy_.Store(
      {.layer = layer, .first_position = stored, .token_count = stored_until - stored});
  Append append;
  append.layer = layer;
  std::int64_t bytes = 0;
  const auto send = [&]() -> absl::Status {
    const KvMemoryCharge charge(memory_, bytes);
    bytes = 0;
    return session_.Send(std::exchange(append, Append{.layer = layer, .clusters = {}}));
  };
  for (const Assignment& assignment : assignments) {
    const std::int64_t size = assignment.token_count * entry_bytes_;
    if (bytes > 0 && bytes + size > kAppendBytesMax) CAIRN_RETURN_IF_ERROR(send());
    ClusterEntries entries;
    entries.cluster = assignment.cluster;
    entries.positions = Positions::Range(assignment.first_position, assignment.token_count);
    entries.entries.resize(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < assignment.token_count; ++i) {
      std::memcpy(entries.entries.data() + i * entry_bytes_,
                  EntryAt(layer, assignment.cluster.head, assignment.first_position + i),
                  static_cast<std::size_t>(entry_bytes_));
    }
    bytes += size;
    append.clusters.push_back(std::move(entries));
  }
  CAIRN_RETURN_IF_ERROR(send());
  stored = stored_until;
  return absl::OkStatus();
}

absl::Status StoredKv::StageCheckpoint() {
  CAIRN_CHECK_EQ(pass_tokens_, 0);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    const std::int64_t first = stored_counts_[static_cast<std::size_t>(layer)];
    StageCarried stage;
    stage.layer = layer;
    std::int64_t bytes = 0;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      const Positions& recorded = recorded_[RowOf(layer, head)];
      CarriedEntries carried;
      carried.head = head;
      carried.buffer_cluster_id = kWindowBuffer;
      carried.positions = Positions::Range(first, token_count_ - first);
      for (std::int64_t at = first; at < token_count_; ++at) {
        if (recorded.Contains(at)) continue;
        carried.brought_positions.Append(at);
        const std::byte* entry = window_.Entry(layer, head, at);
        carried.entries.append(reinterpret_cast<const char*>(entry),
                               static_cast<std::size_t>(entry_bytes_));
      }
      bytes += std::ssize(carried.entries);
      staged_[RowOf(layer, head)] = carried.positions;
      stage.carried.push_back(std::move(carried));
    }
    const KvMemoryCharge charge(memory_, bytes);
    CAIRN_RETURN_IF_ERROR(session_.Send(std::move(stage)));
  }
  return session_.Send(policy_.SaveState());
}

void StoredKv::CheckpointDone() { recorded_ = staged_; }

}  // namespace cairn::compute
