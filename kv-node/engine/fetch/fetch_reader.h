// FetchReader answers a session's fetches. A fetch takes its parts and pending entries when it is
// applied; what is appended later is not in its answer. Each part is served from one slot of the
// cache or, without room there, from one buffer; what neither holds is read, parts that lie side by
// side in one request, and checked before it is served. A part that another read is bringing is
// waited for, not read twice.
//
// Threading:  the engine thread.
// Blocking:   never: without room for buffers a fetch waits at the head of the queue.
// Ownership:  its callbacks hold the host's I/O, so that it outlives them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "kv-node/engine/state/session_host.h"

namespace cairn::kv {

struct FetchRun;
struct WantedPart;

class FetchReader {
 public:
  // `host` outlives it.
  explicit FetchReader(SessionHost& host)
      : host_(host), context_(host.context()), state_(host.state()) {}

  // Both: answered through the host, now or later. REQUIRES: the layer exists.
  Applied StartFetch(RequestId request_id, const Fetch& op);
  Applied StartFetchIndex(RequestId request_id, const FetchIndex& op);

  // Of the device, by all fetches.
  std::int64_t read_bytes() const { return read_bytes_; }
  // Of buffers in replies that somebody still reads or sends.
  std::int64_t unsent_bytes() const { return unsent_bytes_->load(); }

 private:
  struct Job;

  std::int64_t WantIndexOf(const SegmentRows& rows, Job& job, std::int64_t bytes) const;
  // Serves what is there, reads what is not, and answers when all has come.
  void AdvanceFetch(const std::shared_ptr<Job>& job);
  bool FindPart(const std::shared_ptr<Job>& job, WantedPart& wanted);
  // Says of a part that it is lost or cannot be read.
  void GiveUp(WantedPart& wanted, bool of_index);
  void NoteServed(WantedPart& wanted);
  void ReadMissing(const std::shared_ptr<Job>& job, std::vector<WantedPart*> missing);
  // Into the slot, or into a buffer without one.
  void ReadRun(const std::shared_ptr<Job>& job, FetchRun run, const SlotRef& slot);
  void RetryAlone(const std::shared_ptr<Job>& job, WantedPart& wanted);
  void FinishFetch(Job& job);
  static FetchReply ClustersOf(Job& job);
  FetchReply IndexRecordsOf(Job& job);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  std::int64_t read_bytes_ = 0;
  std::set<PartId> lost_index_parts_;  // that FetchIndex met
  const std::shared_ptr<std::atomic<std::int64_t>> unsent_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace cairn::kv
