// Replacer applies Replace: split, merge, repair and eviction. Nothing is written over what the
// parents have, so that a crash finds their bytes untouched: children of few entries are pending
// like what was appended, larger ones go to fresh pools, two to a pool, and where there are many
// all go to a log run.
//
// Threading:  the engine thread.
// Errors:     INVALID_ARGUMENT; RESOURCE_EXHAUSTED flash is full; DATA_LOSS and UNAVAILABLE a
//             parent cannot be read. Nothing has changed then.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "kv-node/engine/checkpoint/log_writer.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/engine/place/placer.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

class Replacer {
 public:
  // All outlive it.
  Replacer(SessionHost& host, Placer& placer, CoFetches& co_fetches, LogWriter& log,
           SessionWrites& writes)
      : host_(host),
        context_(host.context()),
        state_(host.state()),
        placer_(placer),
        co_fetches_(co_fetches),
        log_(log),
        writes_(writes) {}

  // At the head of the queue; there is room for pending entries. Takes what `op` has unless it must
  // wait for a placing.
  Applied Apply(OpSeq op_seq, Replace& op);

 private:
  struct ChildPart;
  using EntryMap = std::map<std::int64_t, std::string_view>;  // position -> bytes

  void FinishReplace(OpSeq op_seq, const Replace& op, const PageSet& pages);
  // The entries of children and evicted: views into `pages`, the operation and `keep`.
  absl::Status CollectReplaced(const Replace& op, const PageSet& pages, EntryMap& entries,
                               std::vector<PendingChunk>& keep) const;
  std::vector<std::size_t> OrderOfChildren(const Replace& op) const;
  bool StaysPending(const Replace& op, const ChildCluster& child) const;
  void KeepPending(const Replace& op, const ChildCluster& child, const EntryMap& entries);
  // The parts of the other children, in their pools, two to a pool where they fit.
  absl::StatusOr<std::vector<ChildPart>> AllocateChildren(const Replace& op) const;
  void WriteChildren(const EntryMap& entries, std::int64_t entry_bytes,
                     std::span<ChildPart> sharing);
  // The rows change; then the parents' parts are gone.
  void ApplyChecked(const Replace& op);
  absl::Status ReplaceInPools(const Replace& op, const EntryMap& entries);
  absl::Status ReplaceInLog(const Replace& op, const EntryMap& entries);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  Placer& placer_;
  CoFetches& co_fetches_;
  LogWriter& log_;
  SessionWrites& writes_;
};

}  // namespace cairn::kv
