// ChannelCall is one call of KvService.Channel, bound to an attachment by its Hello.
//
// Threading:  one thread reads and finishes; another may write at the same time, one at a time.
//             Cancel is for any thread.
// Blocking:   Write while the KV node has no room; Read until a reply or the end.
// Ownership:  shares the connection.
#pragma once

#include <memory>

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/lease_returns.h"
#include "compute-node/kv_client/node_link.h"

namespace cairn::compute {

class ChannelCall {
 public:
  // Returns when the KV node has bound the stream.
  static absl::StatusOr<std::shared_ptr<ChannelCall>> Open(
      std::shared_ptr<const NodeConnection> connection, SessionId session, Epoch epoch);
  ~ChannelCall();
  ChannelCall(const ChannelCall&) = delete;
  ChannelCall& operator=(const ChannelCall&) = delete;

  const std::shared_ptr<const NodeConnection>& connection() const { return connection_; }
  // Of its fetches: with the call their leases end, and their numbers may come again in the next.
  LeaseReturns& lease_returns() { return *lease_returns_; }
  // False when the call has ended.
  bool Write(const pb::ChannelRequest& message);
  // The next reply; null at the end.
  std::shared_ptr<pb::ChannelReply> Read();
  // Why it ended. REQUIRES: Read answered null; once.
  absl::Status Finish();
  void Cancel() { context_.TryCancel(); }

 private:
  explicit ChannelCall(std::shared_ptr<const NodeConnection> connection);

  const std::shared_ptr<const NodeConnection> connection_;
  const std::shared_ptr<LeaseReturns> lease_returns_ = std::make_shared<LeaseReturns>();
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::ChannelRequest, pb::ChannelReply>> stream_;
  bool finished_ = false;
  Mutex write_mutex_;  // held while writing, so that Finish comes behind the last write
};

}  // namespace cairn::compute
