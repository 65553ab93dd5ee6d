// ArenaMap maps the KV node's shared memory for reading: granules come with a handshake, and with
// another one when a reply names one that is not known yet. Granules that the KV node no longer
// lists are unmapped once no reply points into them.
//
// Threading:  safe from any thread.
// Blocking:   Resolve of an unknown granule waits for a handshake.
// Ownership:  what Resolve answers keeps its granule mapped.
// Errors:     INVALID_ARGUMENT a range outside its granule; NOT_FOUND a granule that the KV node
//             does not list: it was given back behind the end of the reply's stream; others of the
//             handshake and of mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/handshake.h"
#include "common/rpc/kv_codec.h"

namespace cairn::compute {

class ArenaMap : public rpc::ArenaResolver {
 public:
  using Handshake = std::function<absl::StatusOr<rpc::HandshakeMessage>()>;

  explicit ArenaMap(Handshake handshake) : handshake_(std::move(handshake)) {}

  absl::StatusOr<rpc::ArenaMemory> Resolve(std::int32_t granule_id, std::int64_t offset_bytes,
                                           std::int64_t size_bytes) override;
  // Unmaps what no reply points into. The next range comes with another handshake.
  void Forget();

 private:
  struct Granule {
    std::shared_ptr<const std::byte> data;  // unmapped with its last owner
    std::int64_t size_bytes = 0;
  };

  absl::Status Refresh() CAIRN_REQUIRES(mutex_);

  const Handshake handshake_;
  Mutex mutex_;
  std::map<std::int32_t, Granule> granules_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
