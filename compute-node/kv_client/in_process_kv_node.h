// InProcessKvNode is a KvNode over an Engine in this process: no socket, no copies, no loss. With
// MakeRamKvNode the engine keeps everything in memory, which is what `--kv ram` compares flash
// with.
//
// Threading:  as kv_client.h says; replies arrive on the engine thread.
// Ownership:  owns the engine. Sessions must be destroyed before the node.
// Errors:     as the engine's. Nothing is lost here, so replay modes make no difference.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "kv-node/engine/engine.h"

namespace cairn::compute {

class InProcessKvNode : public KvNode {
 public:
  // `durable`: what a checkpoint covers survives the process, so that its sessions say when one is
  // due.
  explicit InProcessKvNode(std::shared_ptr<kv::Engine> engine, bool durable = false)
      : engine_(std::move(engine)), durable_(durable) {}

  absl::StatusOr<SessionRef> Create(const CreateSession& request) override;
  absl::StatusOr<std::unique_ptr<KvSession>> Open(const SessionRef& session) override;
  absl::Status Delete(const SessionRef& session) override;
  absl::StatusOr<SessionInfo> Get(const SessionRef& session, ListDetail detail) override;
  absl::StatusOr<std::vector<SessionInfo>> List(ListDetail detail) override;
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) override;
  absl::Status Supersede(const Supersession& request) override;
  absl::StatusOr<KvStats> Stats() override;
  std::int64_t part_bytes_max() const override;

 private:
  const std::shared_ptr<kv::Engine> engine_;
  const bool durable_;
};

struct RamKvNodeOptions {
  // Of the memory device. Memory is used for what is written only.
  std::int64_t size_bytes = std::int64_t{8} << 30;
  kv::EngineOptions engine;
};

// An engine on a device in memory, with metadata in memory; all of it ends with the node.
absl::StatusOr<std::unique_ptr<KvNode>> MakeRamKvNode(const RamKvNodeOptions& options);

}  // namespace cairn::compute
