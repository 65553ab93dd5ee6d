// SessionIndex is the index rows of a session: what GetIndex shows of its chain, and the runs that
// they are packed into. A checkpoint packs the layers whose turn it is, one after the other, before
// its cut; operations behind it wait.
//
// Threading:  the engine thread.
// Errors:     a layer that cannot be packed stays as it is, in memory and in the family `index`,
//             and is tried again some checkpoints later.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "common/base/status.h"
#include "kv-node/engine/state/segment_space.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

class SessionIndex {
 public:
  using RowsByKey = std::map<ClusterKey, IndexRow>;

  // All outlive it.
  SessionIndex(SessionHost& host, SegmentSpace& space, SessionWrites& writes)
      : host_(host),
        context_(host.context()),
        state_(host.state()),
        space_(space),
        writes_(writes) {}

  // Answered through the host, now or later. REQUIRES: the layer exists.
  Applied StartGet(RequestId request_id, const GetIndex& op);

  // Packs the layers whose turn it is, as far as memory allows, and leaves so many pages of flash
  // free. Whether it waits: the checkpoint at the head of the queue comes again.
  bool Pack(std::int64_t reserved_page_count);
  void NoteCut();

 private:
  std::int64_t PutIndexOf(const IndexSource& source, std::int32_t layer, const PageSet& pages,
                          RowsByKey& rows) const;
  // Takes the rows.
  static absl::StatusOr<ReadReply> IndexReplyOf(RowsByKey& rows, std::int64_t read_bytes);
  std::optional<std::int32_t> LayerToPack() const;
  void PackLayer(std::int32_t layer, const PageSet& pages);
  // `pages`: of the layer's old run.
  absl::Status WriteIndexRun(std::int32_t layer, const PageSet& pages);
  // Makes the parts of `run` and writes them. REQUIRES: there are rows.
  absl::Status PackRecords(const RowsByKey& rows, IndexRun& run);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  SegmentSpace& space_;
  SessionWrites& writes_;
  // Layers that could not be packed -> checkpoints until they are tried again.
  std::map<std::int32_t, int> refused_;
  std::int64_t reserved_page_count_ = 0;
};

}  // namespace cairn::kv
