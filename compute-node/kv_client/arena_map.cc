#include "compute-node/kv_client/arena_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/kv/arena_layout.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kGranuleBytesMax = std::int64_t{1} << 32;

// A file that could shrink under its mapping would end this process with SIGBUS.
absl::Status CheckDescriptor(const UniqueFd& fd, std::int64_t size_bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "look at shared memory");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && info.st_size == size_bytes) {
    return absl::OkStatus();
  }
  return InvalidArgument("the KV node's shared memory is not sealed or has {} bytes, not {}",
                         info.st_size, size_bytes);
}

absl::StatusOr<std::shared_ptr<const std::byte>> MapGranule(const UniqueFd& fd,
                                                            std::int64_t size_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckDescriptor(fd, size_bytes));
  const auto size = static_cast<std::size_t>(size_bytes);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map the KV node's shared memory");
  return std::shared_ptr<const std::byte>(
      static_cast<const std::byte*>(data),
      [data, size](const std::byte* /*granule*/) { ::munmap(data, size); });
}

}  // namespace

absl::Status ArenaMap::Refresh() {
  CAIRN_ASSIGN_OR_RETURN(rpc::HandshakeMessage message, handshake_());
  if (message.granules.empty() && message.granule_bytes == 0) {
    granules_.clear();
    return absl::OkStatus();
  }
  if (message.granule_bytes <= 0 || message.granule_bytes > kGranuleBytesMax ||
      message.granule_bytes % kArenaPageBytes != 0) {
    return InvalidArgument("granules of {} bytes", message.granule_bytes);
  }
  if (message.granules.empty()) {
    return ResourceExhausted(
        "the KV node's shared memory did not come through: raise the limit of open files of both "
        "daemons (ulimit -n, LimitNOFILE)");
  }
  std::map<std::int32_t, Granule> granules;
  for (const rpc::HandshakeGranule& listed : message.granules) {
    const auto known = granules_.find(listed.id);
    if (known != granules_.end()) {
      granules.insert(*known);
      continue;
    }
    Granule& granule = granules[listed.id];
    granule.size_bytes = message.granule_bytes;
    CAIRN_ASSIGN_OR_RETURN(granule.data, MapGranule(listed.fd, message.granule_bytes));
  }
  granules_ = std::move(granules);
  return absl::OkStatus();
}

void ArenaMap::Forget() {
  MutexLock lock(mutex_);
  granules_.clear();
}

absl::StatusOr<rpc::ArenaMemory> ArenaMap::Resolve(std::int32_t granule_id,
                                                   std::int64_t offset_bytes,
                                                   std::int64_t size_bytes) {
  MutexLock lock(mutex_);
  if (!granules_.contains(granule_id)) CAIRN_RETURN_IF_ERROR(Refresh());
  const auto found = granules_.find(granule_id);
  if (found == granules_.end()) {
    return NotFound("granule {} is not one that the KV node lists", granule_id);
  }
  const std::int64_t granule_bytes = found->second.size_bytes;
  if (offset_bytes < 0 || size_bytes < 1 || offset_bytes > granule_bytes ||
      size_bytes > granule_bytes - offset_bytes) {
    return InvalidArgument("{} bytes from {} on of granule {}, which has {}", size_bytes,
                           offset_bytes, granule_id, granule_bytes);
  }
  return rpc::ArenaMemory{found->second.data.get(), found->second.data};
}

}  // namespace cairn::compute
