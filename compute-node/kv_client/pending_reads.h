// PendingReads holds the reads of a session that are not answered yet, with what is needed to ask
// again after a loss. It tells the timeline how long each was under way, and a FetchClock so of
// fetches.
//
// Threading:  not synchronised; its session's mutex guards it. Promises are kept by the caller's
//             future; answering one wakes its thread.
// Limits:     kFetchesInFlightMax reads.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "common/timeline/timeline.h"
#include "compute-node/kv_client/fetch_clock.h"

namespace cairn::compute {

class PendingReads {
 public:
  struct Read {
    ReadOperation operation;
    OpSeq after;  // the read follows this changing operation
  };

  explicit PendingReads(std::shared_ptr<FetchClock> clock) : clock_(std::move(clock)) {}
  ~PendingReads() {
    for (const auto& [id, entry] : reads_) EndClock(entry);
  }
  PendingReads(const PendingReads&) = delete;
  PendingReads& operator=(const PendingReads&) = delete;

  bool full() const { return reads_.size() >= static_cast<std::size_t>(kFetchesInFlightMax); }
  bool empty() const { return reads_.empty(); }

  // A number for what has no reply.
  RequestId NewId() { return RequestId(++last_id_); }

  // REQUIRES: not full.
  std::pair<RequestId, std::future<absl::StatusOr<ReadReply>>> Add(Read read) {
    CAIRN_CHECK(!full());
    const RequestId id = NewId();
    Entry& entry = reads_[id];
    entry.read = std::move(read);
    entry.start = TimelineClock::now();
    if (IsFetch(entry)) clock_->BeginFetch();
    return {id, entry.promise.get_future()};
  }

  // The first read above `id` in the order of asking; nullopt if there is none.
  std::optional<std::pair<RequestId, Read>> NextAbove(RequestId id) const {
    const auto next = reads_.upper_bound(id);
    if (next == reads_.end()) return std::nullopt;
    return std::make_pair(next->first, next->second.read);
  }

  // False for a read that is not pending any more.
  bool Answer(RequestId id, absl::StatusOr<ReadReply> reply) {
    const auto found = reads_.find(id);
    if (found == reads_.end()) return false;
    EndClock(found->second);
    if (reply.ok()) clock_->AddReadBytes(ReadBytesOf(*reply));
    if (TimelineIsOn()) TellTimeline(found->second, reply);
    found->second.promise.set_value(std::move(reply));
    reads_.erase(found);
    return true;
  }

  void FailAll(const absl::Status& status) {
    for (auto& [id, entry] : reads_) {
      EndClock(entry);
      entry.promise.set_value(status);
    }
    reads_.clear();
  }

 private:
  struct Entry {
    Read read;
    std::promise<absl::StatusOr<ReadReply>> promise;
    TimelineClock::time_point start;
  };

  // Not what opens a conversation, beside which nothing is computed.
  static bool IsFetch(const Entry& entry) {
    const auto* index = std::get_if<FetchIndex>(&entry.read.operation);
    return std::holds_alternative<Fetch>(entry.read.operation) ||
           (index != nullptr && !index->only_visible);
  }
  static std::int64_t ReadBytesOf(const ReadReply& reply) {
    if (const auto* fetch = std::get_if<FetchReply>(&reply)) return fetch->read_bytes;
    if (const auto* index = std::get_if<IndexReply>(&reply)) return index->read_bytes;
    const auto* carried = std::get_if<CarriedReply>(&reply);
    return carried == nullptr ? 0 : carried->read_bytes;
  }
  void EndClock(const Entry& entry) {
    if (IsFetch(entry)) clock_->EndFetch();
  }

  static void TellTimeline(const Entry& entry, const absl::StatusOr<ReadReply>& reply) {
    const TimelineClock::time_point now = TimelineClock::now();
    const Fetch* fetch = std::get_if<Fetch>(&entry.read.operation);
    if (fetch == nullptr) {
      AddTimelineFlight(TimelineKind::kIo, "read", entry.start, now, {});
      return;
    }
    std::int64_t bytes = 0;
    std::int64_t cluster_count = 0;
    if (reply.ok() && std::holds_alternative<FetchReply>(*reply)) {
      for (const FetchedCluster& cluster : std::get<FetchReply>(*reply).clusters) {
        ++cluster_count;
        for (const Span& span : cluster.spans) bytes += std::ssize(span.bytes);
      }
    }
    AddTimelineFlight(TimelineKind::kIo, "fetch", entry.start, now,
                      {{"layer", fetch->layer}, {"clusters", cluster_count}, {"bytes", bytes}});
  }

  const std::shared_ptr<FetchClock> clock_;
  std::map<RequestId, Entry> reads_;
  std::int64_t last_id_ = 0;
};

// The checkpoint that a session waits for, or the last one that it waited for. Guarded as above.
struct CheckpointWait {
  OpSeq op_seq;
  std::int64_t token_count = 0;
  bool seal = false;
  std::optional<Checkpointed> result;

  bool in_progress() const { return op_seq != OpSeq() && !result.has_value(); }
};

}  // namespace cairn::compute
