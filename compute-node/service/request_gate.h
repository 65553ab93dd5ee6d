// RequestGate has few calls at a time read their request, and claims memory for what came. gRPC
// takes a message into memory whole, and only then says how long it is; so many messages of the
// greatest length can be there at once as the gate lets in, and the others wait with the client.
//
// Limits:     kRequestReadersMax read at a time; a call that has waited for kRequestReadTimeMax is
//             refused.
// Threading:  safe from any thread.
// Blocking:   until the request has come. A client that does not send it is noticed by gRPC's
//             pings.
#pragma once

#include <chrono>

#include <google/protobuf/message.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/service/memory_budget.h"

namespace cairn::compute {

inline constexpr int kRequestReadersMax = 4;
inline constexpr std::chrono::seconds kRequestReadTimeMax{10};

class RequestGate {
 public:
  // Borrows `memory`.
  explicit RequestGate(MemoryBudget& memory) : memory_(memory) {}

  // The one request of a call of gRPC. `claim` becomes what it and the prompt that is made of it
  // take. UNAVAILABLE: try again; OUT_OF_RANGE: more than one may take; INVALID_ARGUMENT: none
  // came.
  template <typename Stream, typename Request>
  absl::Status Read(Stream& stream, Request& request, MemoryClaim& claim) {
    CAIRN_RETURN_IF_ERROR(Enter());
    return Leave(stream.Read(&request), request, claim);
  }

 private:
  absl::Status Enter();
  absl::Status Leave(bool has_read, google::protobuf::Message& request, MemoryClaim& claim);

  MemoryBudget& memory_;
  Mutex mutex_;
  CondVar changed_;
  int reader_count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::compute
