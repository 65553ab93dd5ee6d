#include "compute-node/kv_client/in_process_kv_node.h"

#include <utility>
#include <variant>

#include "compute-node/kv_client/in_process_kv_session.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/layout/superblock.h"

namespace cairn::compute {
absl::StatusOr<SessionRef> InProcessKvNode::Create(const CreateSession& request) {
  return AskEngine<SessionRef>(*engine_, &kv::Engine::Create, request);
}

absl::StatusOr<std::unique_ptr<KvSession>> InProcessKvNode::Open(const SessionRef& session) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<KvSession> opened,
                         InProcessKvSession::Open(engine_.get(), session, durable_));
  return opened;
}

absl::Status InProcessKvNode::Delete(const SessionRef& session) {
  return AskEngine<std::monostate>(*engine_, &kv::Engine::DeleteSession, session).status();
}

absl::StatusOr<SessionInfo> InProcessKvNode::Get(const SessionRef& session, ListDetail detail) {
  return AskEngine<SessionInfo>(*engine_, &kv::Engine::GetSession, session, detail);
}

absl::StatusOr<std::vector<SessionInfo>> InProcessKvNode::List(ListDetail detail) {
  return AskEngine<std::vector<SessionInfo>>(*engine_, &kv::Engine::ListSessions, detail);
}

absl::StatusOr<SealedSegment> InProcessKvNode::Seal(const SessionRef& session) {
  return AskEngine<SealedSegment>(*engine_, &kv::Engine::SealSession, session);
}

absl::Status InProcessKvNode::Supersede(const Supersession& request) {
  return AskEngine<std::monostate>(*engine_, &kv::Engine::SupersedeSession, request).status();
}

absl::StatusOr<KvStats> InProcessKvNode::Stats() {
  absl::StatusOr<KvStats> stats = AskEngine<KvStats>(*engine_, &kv::Engine::GetStats);
  if (stats.ok() && durable_) stats->io_engine += kEmbeddedSuffix;
  return stats;
}

std::int64_t InProcessKvNode::part_bytes_max() const { return kv::kPartBytesMax; }

absl::StatusOr<std::unique_ptr<KvNode>> MakeRamKvNode(const RamKvNodeOptions& options) {
  kv::EngineOptions engine_options = options.engine;
  engine_options.durable = false;
  engine_options.arena_bytes_max = 0;  // the device is memory: a cache would hold it twice
  engine_options.answers_are_held = true;
  kv::MetaOptions meta_options;
  meta_options.path = "/cairn-ram";
  meta_options.in_memory = true;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<kv::MetaStore> meta,
                         kv::MetaStore::Open(std::move(meta_options)));
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<kv::Engine> engine,
      kv::Engine::Open(engine_options, kv::NewStoreId(),
                       std::make_unique<kv::MemoryDevice>(options.size_bytes), std::move(meta)));
  std::unique_ptr<KvNode> node = std::make_unique<InProcessKvNode>(std::move(engine));
  return node;
}

}  // namespace cairn::compute
