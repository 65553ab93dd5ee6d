#include "compute-node/service/request_gate.h"

namespace cairn::compute {

absl::Status RequestGate::Enter() {
  const auto deadline = std::chrono::steady_clock::now() + kRequestReadTimeMax;
  const MutexLock lock(mutex_);
  while (reader_count_ >= kRequestReadersMax) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    return Unavailable(
        "{} other calls have been sending their requests for {} s: try again in some seconds",
        reader_count_, kRequestReadTimeMax.count());
  }
  ++reader_count_;
  return absl::OkStatus();
}

absl::Status RequestGate::Leave(bool has_read, google::protobuf::Message& request,
                                MemoryClaim& claim) {
  absl::Status status = InvalidArgument("the call brought no request that can be read");
  if (has_read) {
    claim = MemoryClaim(memory_);
    // What the fields take, which for short ones is more than their bytes.
    status = claim.Resize(RequestMemoryBytes(static_cast<std::int64_t>(request.SpaceUsedLong())));
  }
  if (!status.ok()) request.Clear();
  const MutexLock lock(mutex_);
  --reader_count_;
  changed_.NotifyOne();
  return status;
}

}  // namespace cairn::compute
