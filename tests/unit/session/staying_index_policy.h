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
#include "compute-node/retrieval/dynakv_policy.h"

namespace cairn::compute {

// Records of one size behind each other.
inline std::string RunOf(std::span<const IndexRecord> records) {
  std::string run;
  for (const IndexRecord& record : records) {
    IndexRow row;
    row.cluster = record.cluster;
    row.row = record.row;
    row.stale = record.stale;
    row.entry_count = record.entry_count;
    std::string bytes(static_cast<std::size_t>(IndexRecordBytes(row)), '\0');
    EncodeIndexRecord(row, std::as_writable_bytes(std::span(bytes)));
    run += bytes;
  }
  return run;
}

class StayingIndexPolicy : public DynaKvPolicy {
 public:
  using DynaKvPolicy::DynaKvPolicy;
  void UnloadIndex(std::int32_t) override {}
  absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                            const std::vector<ClusterInfo>* clusters, ThreadPool& pool) override {
    CAIRN_RETURN_IF_ERROR(DynaKvPolicy::RestoreIndex(layer, records, clusters, pool));
    if (IndexIsLoaded(layer)) return absl::OkStatus();
    const std::string run = RunOf(records);
    const IndexRecords all{std::as_bytes(std::span(run)), std::ssize(records)};
    EXPECT_EQ(LoadIndex(layer, {&all, 1}, pool), 0);
    return absl::OkStatus();
  }
};

}  // namespace cairn::compute
