// StayingIndexPolicy is dynakv with the whole index in memory all the time, for comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/kv/index_record.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "tests/tools/index_run.h"

namespace cairn::compute {

class StayingIndexPolicy : public DynaKvPolicy {
 public:
  using DynaKvPolicy::DynaKvPolicy;
  void UnloadIndex(std::int32_t) override {}
  absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                            const std::vector<ClusterInfo>* clusters, ThreadPool& pool) override {
    CAIRN_RETURN_IF_ERROR(DynaKvPolicy::RestoreIndex(layer, records, clusters, pool));
    if (IndexIsLoaded(layer)) return absl::OkStatus();
    std::vector<IndexRow> rows;
    rows.reserve(records.size());
    for (const IndexRecord& record : records) {
      rows.push_back({record.cluster, std::string(record.row), record.stale, record.entry_count});
    }
    const std::string run = test::IndexRunOf(rows);
    const IndexRecords all{std::as_bytes(std::span(run)), std::ssize(records)};
    EXPECT_EQ(LoadIndex(layer, {&all, 1}, pool), 0);
    return absl::OkStatus();
  }
};

}  // namespace cairn::compute
