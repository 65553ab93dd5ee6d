// An engine over memory with waiting calls, and entries whose bytes say which they are.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/engine/engine.h"

namespace cairn::kv {

// Waits for a callback of the engine.
template <typename T, typename Start>
absl::StatusOr<T> Await(Start&& start) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = promise->get_future();
  start([promise](absl::StatusOr<T> result) { promise->set_value(std::move(result)); });
  return future.get();
}

// One attached session, with waiting reads. Numbers changing operations itself.
class TestSession {
 public:
  static absl::StatusOr<std::unique_ptr<TestSession>> Open(Engine& engine, SessionId id,
                                                           const AttachAttempt& attempt = {},
                                                           AppId app = kDefaultApp);
  static absl::StatusOr<std::unique_ptr<TestSession>> Resume(Engine& engine, SessionId id,
                                                             Epoch epoch);
  static absl::StatusOr<std::unique_ptr<TestSession>> Resume(Engine& engine,
                                                             const ResumeRequest& request);

  const Attachment& attachment() const { return attachment_; }
  // Submits and returns the number; waits while the channel is full.
  OpSeq Send(const ChangingOperation& operation);
  // Submits again under a number that was used before.
  void SendAs(OpSeq op_seq, const ChangingOperation& operation);
  absl::StatusOr<ReadReply> Read(const ReadOperation& operation, OpSeq after = OpSeq(0));
  // Waits for the checkpoint's end.
  absl::StatusOr<Checkpointed> WaitFor(OpSeq checkpoint);
  // The first failure that was told, or OK.
  absl::Status failure();
  // After a failure that was expected: later waits are for what comes from now on. The channel's
  // end stays.
  void ForgetFailures();
  OpSeq last_op_seq() const { return OpSeq(next_op_seq_ - 1); }

 private:
  struct Observer;
  static absl::StatusOr<std::unique_ptr<TestSession>> Bind(Engine& engine, AppId app,
                                                           Attachment attachment);

  Attachment attachment_;
  std::shared_ptr<Observer> observer_;
  std::shared_ptr<Channel> channel_;
  std::int64_t next_op_seq_ = 1;
  std::int64_t next_request_ = 1;
};

// The bytes of one entry: recognisable, different for every (salt, layer, head, position).
std::string EntryBytes(const EntryLayout& layout, std::int64_t salt, std::int32_t layer,
                       std::int32_t head, std::int64_t position);
// Entries of several positions, one after the other.
std::string EntriesBytes(const EntryLayout& layout, std::int64_t salt, std::int32_t layer,
                         std::int32_t head, const Positions& positions);
// A fetched cluster's positions and bytes, joined over its spans.
struct JoinedCluster {
  Positions positions;
  std::string entries;
};
JoinedCluster Join(const EntryLayout& layout, const FetchedCluster& cluster);

EntryLayout SmallLayout();
SegmentKey SmallKey();

}  // namespace cairn::kv
