// MetaStore keeps the KV node's metadata: small rows in column families, written in atomic batches
// by one metadata thread, read directly. Open() gives one in RocksDB; a simulation has its own,
// whose thread is a step.
//
// Units:      sizes in bytes; counts in items.
// Threading:  every method is safe from any thread. Callbacks and tasks run on the metadata thread,
//             one at a time, in the order of Commit() and Run(); they may call Commit() and Run(),
//             and must not throw.
// Blocking:   Open(), the destructor and the readers do file I/O. Commit() and Run() only queue.
// Ownership:  the destructor finishes everything queued, callbacks included, moves all rows from
//             the log into table files, whose blocks have checksums, and closes the store. A
//             damaged log costs the batches behind the damage; a closed store has an empty one.
// Errors:     UNAVAILABLE queue full, or the store is locked by another process; DATA_LOSS damaged
//             files; RESOURCE_EXHAUSTED disk full; INTERNAL the disk cannot be read or written.
//             What of a failed write reached the disk is unknown until the files are opened anew,
//             and until then every later commit is refused with that first error: behind a commit
//             that is OK all failed ones are there in full or not at all. The store opens
//             them anew by itself, once they can be written again; reads go on meanwhile but for
//             the moment of that. So it does, before a commit, where RocksDB's own threads met an
//             error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace cairn::kv {

// Column families. Their names on disk ("apps", "sessions", ...) are permanent.
enum class Family : std::uint8_t {
  kApps,
  kSessions,
  kSegments,
  kClusters,
  kPools,
  kRuns,
  kIndex,
  kAdapters,
  kCoretrieval,
  kConfig,
};
inline constexpr int kFamilyCount = 10;
std::string_view FamilyName(Family family);

// Changes that take effect together, in the order in which they were added.
class MetaBatch {
 public:
  enum class Kind : std::uint8_t { kPut, kDelete, kDeletePrefix };
  struct Change {
    Kind kind;
    Family family;
    std::string key;  // or the prefix
    std::string value;
  };

  void Put(Family family, std::string key, std::string value);
  void Delete(Family family, std::string key);
  // Deletes every key that starts with `prefix`, which must hold a byte below 0xff.
  void DeletePrefix(Family family, std::string prefix);

  bool empty() const { return changes_.empty(); }
  // What the batch costs in the queue and in the log, about.
  std::int64_t size_bytes() const { return size_bytes_; }
  const std::vector<Change>& changes() const { return changes_; }

 private:
  void Add(Change change);

  std::vector<Change> changes_;
  std::int64_t size_bytes_ = 0;
};

// Where the keys that start with `prefix` end; empty when they reach to the last key.
std::string PrefixEnd(std::string prefix);

// Threading: every method from any thread.
class MetaReader {
 public:
  // Stops a scan early when it returns an error, which Scan() returns. The views are valid during
  // the call.
  using Visit = std::function<absl::Status(std::string_view key, std::string_view value)>;

  virtual ~MetaReader() = default;
  virtual absl::StatusOr<std::optional<std::string>> Get(Family family, std::string_view key) = 0;
  // Visits, in key order, every row of one moment whose key starts with `prefix` (empty: all rows).
  absl::Status Scan(Family family, std::string_view prefix, const Visit& visit) {
    return ScanRange(family, prefix, PrefixEnd(std::string(prefix)), visit);
  }
  // The same with keys from `first` up to, and without, `end` (empty: to the last key).
  virtual absl::Status ScanRange(Family family, std::string_view first, std::string_view end,
                                 const Visit& visit) = 0;
  // Whether rows are as they stay: not while it is unknown what of a failed commit is there.
  virtual absl::Status Settled() { return absl::OkStatus(); }
};

// Queued and not yet done. A full queue answers UNAVAILABLE; one item is accepted into an empty
// queue whatever its size.
inline constexpr int kMetaQueueCountMax = 4096;
inline constexpr std::int64_t kMetaQueueBytesMax = std::int64_t{4} << 20;
// Queued batches are written together up to this size.
inline constexpr std::int64_t kMetaGroupBytesMax = std::int64_t{1} << 20;
inline constexpr int kCommitRecoverShare = 50;

struct MetaOptions {
  std::string path;        // directory; created when missing, its parent must exist
  bool in_memory = false;  // nothing reaches a disk, nothing survives; `path` is only a name
  std::int64_t block_cache_bytes = std::int64_t{1} << 20;  // data, index and filter blocks
  std::int64_t memtable_bytes = std::int64_t{1} << 20;     // of all families together
  // How far the files at `path` must go at least, as latest_sequence() told it; 0: not known. When
  // they end before, or are another store's, Open() refuses (DATA_LOSS, FAILED_PRECONDITION) and
  // has changed nothing.
  std::uint64_t sequence_min = 0;
  std::string extent_path = "";  // whose superblock gave sequence_min; for the message
  std::string store_id = "";     // also from there; metadata with another one is another store's
  // Called at the end of the destructor when all that was committed is in table files, with
  // latest_sequence(). Not in memory.
  std::function<void(std::uint64_t sequence)> on_clean_close = nullptr;
  // How often to try to open the files anew after a failed write; for a commit that comes
  // meanwhile kCommitRecoverShare times as often.
  std::chrono::milliseconds recover_each = std::chrono::seconds(1);
  // How often to look whether the files are still there, beside before each commit.
  std::chrono::milliseconds look_each = std::chrono::seconds(2);
  // For tests: puts a file system in between.
  std::function<std::shared_ptr<rocksdb::FileSystem>(std::shared_ptr<rocksdb::FileSystem> base)>
      wrap_file_system = nullptr;
};

struct MetaStats {
  std::int64_t batch_count = 0;
  std::int64_t group_count = 0;  // writes to RocksDB, each synced once
  std::int64_t written_bytes = 0;
  std::int64_t queued_count = 0;
  std::int64_t block_cache_bytes = 0;
  std::int64_t memtable_bytes = 0;
  std::int64_t table_reader_bytes = 0;
  std::int64_t recovered_count = 0;   // how often the files were opened anew after an error
  std::int64_t lost_place_count = 0;  // how often they were found deleted, moved or replaced
};

// What reached files since the store was opened.
struct MetaWriteStats {
  std::int64_t log_bytes = 0;    // batches, without the log's own headers
  std::int64_t table_bytes = 0;  // table files, of flushes and compactions
};

class MetaStore {
 public:
  using CommitDone = std::function<void(absl::Status)>;
  using Task = std::function<void(MetaReader&)>;

  MetaStore(const MetaStore&) = delete;
  MetaStore& operator=(const MetaStore&) = delete;

  // In RocksDB.
  static absl::StatusOr<std::unique_ptr<MetaStore>> Open(MetaOptions options);
  virtual ~MetaStore() = default;

  // Queues a batch. `done` gets OK when the batch is durable (in memory: visible). When Commit()
  // itself returns an error, the batch was not taken and `done` never runs.
  virtual absl::Status Commit(MetaBatch batch, CommitDone done) = 0;
  // Queues `task` behind all batches and tasks queued before; it sees the batches' effects.
  virtual absl::Status Run(Task task) = 0;
  // Commits and waits. Not on the metadata thread.
  virtual absl::Status CommitAndWait(MetaBatch batch);

  // RocksDB's number of the last change that is durable (in memory: visible). 0: nothing was ever
  // written.
  virtual std::uint64_t latest_sequence() const = 0;

  virtual MetaReader& reader() = 0;
  // From now on the file options.extent_path has so many bytes at least: nothing is committed while
  // it is shorter. Any thread.
  virtual void ExpectExtentBytes(std::int64_t bytes_min) = 0;

  virtual MetaStats stats() = 0;
  // Waits for nothing but a lock that is held for moments.
  virtual MetaWriteStats write_stats() = 0;
  // Keys and values of the rows that were read since the store was opened, wherever they lay.
  virtual std::int64_t read_bytes() const = 0;

 protected:
  MetaStore() = default;
};

// Ties metadata and extent file together: stores `store_id` (family config, key "store_id") in a
// store that has no row yet. `extent_path` is for messages. Waits for I/O.
//
// Errors:     FAILED_PRECONDITION the store holds another id; DATA_LOSS it holds rows, but no id.
absl::Status CheckStoreId(MetaStore& store, std::string_view store_id,
                          std::string_view extent_path);

}  // namespace cairn::kv
