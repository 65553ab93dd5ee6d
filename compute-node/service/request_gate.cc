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

void RequestGate::Leave() {
  const MutexLock lock(mutex_);
  --reader_count_;
  changed_.NotifyOne();
}

absl::Status RequestGate::Claim(const google::protobuf::Message& request, MemoryClaim& claim) {
  claim = MemoryClaim(memory_);
  // What the fields take, which for short ones is more than their bytes.
  return claim.Resize(RequestMemoryBytes(static_cast<std::int64_t>(request.SpaceUsedLong())));
}

absl::Status RequestGate::NothingCame() {
  return InvalidArgument("the call brought no request that can be read");
}

}  // namespace cairn::compute
