// SimMetaStore is a MetaStore whose thread is a step: what is queued waits until Step() takes it.
// Its rows are maps that outlive it, as files would.
//
// Fault model: a commit is slow as long as nobody steps; one that fails leaves its group doubtful,
// there in full or not at all, and every later one is refused until the store has recovered; a
// process that ends loses what is queued, of which the first group may be there, unacknowledged.
//
// Threading:  one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kv-node/meta/meta_store.h"

namespace cairn::sim {

// By family and key.
using SimRows = std::array<std::map<std::string, std::string, std::less<>>, kv::kFamilyCount>;

class SimMetaStore final : public kv::MetaStore, public kv::MetaReader {
 public:
  using Random = std::function<std::int64_t(std::int64_t below)>;

  // The rows outlive the store.
  SimMetaStore(SimRows& rows, Random random) : rows_(rows), random_(std::move(random)) {}
  ~SimMetaStore() override;
  SimMetaStore(const SimMetaStore&) = delete;
  SimMetaStore& operator=(const SimMetaStore&) = delete;

  // Takes a task, or some neighbouring batches. False: nothing is queued.
  bool Step();
  bool idle() const { return queue_.empty(); }
  // The disk is full until FreeDisk: commits fail.
  void FillDisk() { disk_is_full_ = true; }
  void FreeDisk() { disk_is_full_ = false; }
  // The process ends: nothing is committed any more.
  void Die();

  absl::Status Commit(kv::MetaBatch batch, CommitDone done) override;
  absl::Status Run(Task task) override;
  absl::Status CommitAndWait(kv::MetaBatch batch) override;
  std::uint64_t latest_sequence() const override { return sequence_; }
  kv::MetaReader& reader() override { return *this; }
  void ExpectExtentBytes(std::int64_t /*bytes_min*/) override {}
  kv::MetaStats stats() override { return {}; }
  kv::MetaWriteStats write_stats() override { return {}; }
  std::int64_t read_bytes() const override { return 0; }

  absl::StatusOr<std::optional<std::string>> Get(kv::Family family, std::string_view key) override;
  absl::Status ScanRange(kv::Family family, std::string_view first, std::string_view end,
                         const Visit& visit) override;
  absl::Status Settled() override { return broken_; }

 private:
  struct Item {
    kv::MetaBatch batch;
    CommitDone done;
    Task task;  // instead of a batch
  };

  std::vector<Item> TakeGroup();
  absl::Status Write(const std::vector<Item>& group);
  void Apply(const std::vector<kv::MetaBatch::Change>& changes);
  // What of the doubtful group is there shows.
  void SettleDoubt();

  SimRows& rows_;
  const Random random_;
  std::deque<Item> queue_;
  absl::Status broken_;
  std::vector<kv::MetaBatch::Change> doubtful_;
  bool disk_is_full_ = false;
  bool dead_ = false;
  std::uint64_t sequence_ = 0;
};

}  // namespace cairn::sim
