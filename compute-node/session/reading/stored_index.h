// StoredIndex: the index rows of one layer after the other, as a session's last checkpoint has
// them.
//
// Threading:  one thread.
// Blocking:   Take waits for the KV node.
// Ownership:  borrows the session. Records lie in the answer, which may be shared memory.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/kv/index_record.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"

namespace cairn::compute {

class StoredIndex {
 public:
  explicit StoredIndex(KvSession& session) : session_(session) {}

  using Answer = std::future<absl::StatusOr<ReadReply>>;
  // Asks for a layer's rows.
  Answer Ask(std::int32_t layer) const;
  // Waits for the answer and goes to that layer. INTERNAL if it is none.
  absl::Status Take(std::int32_t layer, Answer answer);
  // Of the layer, ascending; until the next Take or Clear.
  std::span<const IndexRecord> records() const { return records_; }
  // Behind the use of the records: ABORTED unless they were there all the time.
  absl::Status CheckIntact() const;
  // Lets go of the answer.
  void Clear();

 private:
  void TakeRecords();
  absl::Status TakeRows(std::int32_t layer);

  KvSession& session_;
  // What the records lie in.
  FetchReply fetched_;
  IndexReply rows_;
  std::vector<IndexRecord> records_;  // one layer after the other takes the same memory
};

}  // namespace cairn::compute
