#include "compute-node/session/reading/stored_index.h"

#include <algorithm>
#include <utility>

#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {

StoredIndex::Answer StoredIndex::Ask(std::int32_t layer) const {
  return session_.StartRead(FetchIndex{.layer = layer, .only_visible = true});
}

absl::Status StoredIndex::Take(std::int32_t layer, Answer answer) {
  Clear();
  CAIRN_ASSIGN_OR_RETURN(fetched_, Wait<FetchReply>(std::move(answer)));
  const bool is_index = fetched_.clusters.size() == 1 &&
                        fetched_.clusters.front().cluster == ClusterRef{kAllHeads, ClusterId(1)};
  const FetchOutcome outcome =
      is_index ? fetched_.clusters.front().outcome : FetchOutcome::kUnknown;
  switch (outcome) {
    case FetchOutcome::kFound:
      TakeRecords();
      return absl::OkStatus();
    case FetchOutcome::kLost:
      return TakeRows(layer);
    case FetchOutcome::kUnknown:
    case FetchOutcome::kUnreadable:
      break;
  }
  return Internal("layer {}: the KV node's answer to FetchIndex is none", layer);
}

void StoredIndex::TakeRecords() {
  std::vector<IndexRecords> runs;
  for (const Span& span : fetched_.clusters.front().spans) {
    if (span.entry_count > 0) runs.push_back({span.bytes, span.entry_count});
  }
  FindVisibleRecords(runs, records_);
}

// Where a damaged record might let an older one show: the KV node leaves both out of rows.
absl::Status StoredIndex::TakeRows(std::int32_t layer) {
  CAIRN_ASSIGN_OR_RETURN(rows_, Wait<IndexReply>(session_.StartRead(GetIndex{layer})));
  for (const IndexRow& row : rows_.rows) {
    records_.push_back({row.cluster, row.entry_count, row.stale, row.row});
  }
  std::sort(records_.begin(), records_.end(),
            [](const IndexRecord& a, const IndexRecord& b) { return a.cluster < b.cluster; });
  return absl::OkStatus();
}

absl::Status StoredIndex::CheckIntact() const { return compute::CheckIntact(fetched_); }

void StoredIndex::Clear() {
  records_.clear();
  fetched_ = FetchReply();
  rows_ = IndexReply();
}

}  // namespace cairn::compute
