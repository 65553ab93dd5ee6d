#include "tests/sim/sim_node.h"

#include <unistd.h>

#include "kv-node/layout/rows.h"
#include "tests/sim/sim_stream.h"

namespace cairn::sim {
namespace {

// Enough for an engine that does nothing but end.
constexpr int kEndPassesMax = 100000;

}  // namespace

SimStore::SimStore(std::uint64_t seed, char letter, std::int64_t pages)
    : name(16, letter),
      page_count(pages),
      disk({.size_bytes = pages * kv::kPageBytes, .seed = seed, .delay_polls_max = 3}) {
  id.fill(static_cast<std::byte>(letter));
}

std::optional<OpSeq> SimStore::StoredOpSeq(const std::string& uid) const {
  for (const auto& [key, row] : rows[static_cast<std::size_t>(kv::Family::kSessions)]) {
    const auto session = kv::DecodeSessionRow(row);
    if (session.ok() && session->uid == uid) return session->op_seq;
  }
  return std::nullopt;
}

SimNode::~SimNode() {
  if (is_up()) End(Ending::kKill, last_time_);
}

absl::Status SimNode::Start(SimStore& store, const kv::EngineOptions& options, kv::EngineTime now) {
  auto meta = std::make_unique<SimMetaStore>(store.rows, random_);
  SimMetaStore* const meta_store = meta.get();
  kv::EngineWorld world{store.disk.Open(), std::move(meta), nullptr};
  world.unix_microseconds = [this] { return last_time_.time_since_epoch().count() / 1000; };
  world.return_freed_memory = [] {};  // takes an eighth of the time, and changes nothing
  world.random_bytes = [this](std::int64_t count) {
    std::string bytes(static_cast<std::size_t>(count), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_(256));
    return bytes;
  };
  auto core = std::make_unique<kv::EngineCore>(options, store.id, std::move(world));
  CAIRN_RETURN_IF_ERROR(core->Prepare(now));
  ++incarnation_;
  last_time_ = now;
  store_ = &store;
  arena_bytes_max_ = options.arena_bytes_max;
  meta_ = meta_store;
  core_ = std::move(core);
  return absl::OkStatus();
}

void SimNode::RunEngine(kv::EngineTime now) {
  core_->RunOnce(now);
  last_run_ = now;
}

absl::StatusOr<rpc::HandshakeMessage> SimNode::Handshake(std::int64_t incarnation) const {
  if (!is_up() || incarnation != incarnation_) return Unavailable("the KV node was restarted");
  rpc::HandshakeMessage message;
  for (const auto& granule : core_->ArenaGranules(kDefaultApp)) {
    message.granule_bytes = granule->size_bytes();
    message.granules.push_back({granule->id(), UniqueFd(::dup(granule->fd()))});
  }
  return message;
}

bool SimNode::IsWithinBudget() const {
  std::int64_t bytes = 0;
  for (const auto& granule : core_->ArenaGranules(kDefaultApp)) bytes += granule->size_bytes();
  return bytes <= arena_bytes_max_;
}

void SimNode::TellStopping() {
  for (const auto& stream : streams_) stream->TellStopping();
}

void SimNode::End(Ending ending, kv::EngineTime now) {
  last_time_ = now;
  ++incarnation_;  // from here on nobody hears it
  const auto streams = std::exchange(streams_, {});
  for (const auto& stream : streams) stream->OnNodeEnd(random_);
  const auto calls = calls_;
  for (const auto& [call, fail] : calls) fail();
  if (ending == Ending::kPowerCut) store_->disk.PowerCut();
  // What is at the device may reach it yet.
  if (ending == Ending::kKill) store_->disk.DieAfter(random_(4));
  if (ending != Ending::kStop) meta_->Die();
  core_->GetStats(kDefaultApp, [this](const absl::StatusOr<KvStats>& stats) {
    if (stats.ok()) packed_page_count_ += stats->write_defragment_bytes / kv::kPageBytes;
  });
  core_->StartStop();
  int passes = 0;
  for (bool busy = true; busy || !core_->HasStopped(); ++passes) {
    CAIRN_CHECK_LT(passes, kEndPassesMax);
    busy = meta_->Step();
    busy = core_->RunOnce(now) || busy;
  }
  core_.reset();
  store_->disk.ForgetFaults();
}

}  // namespace cairn::sim
